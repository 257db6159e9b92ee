"""Checks of Data-Juicer and its operators, which another process imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.common.config.sections import DataJuicerServiceConfig
from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.service.data_juicer.checking import OperatorProblem, operator_problems
from trinity.service.data_juicer.models import asked_models
from trinity.service.data_juicer.policy import refusal
from trinity.service.data_juicer.recipe import Recipe, read_recipe

if TYPE_CHECKING:
    from trinity.common.config import Config

OPERATOR = "data_juicer"
Owned = tuple[str, tuple[str, dict[str, Any]]]
"""Key of the list, name and arguments of an operator."""


def check_data_juicer(config: Config) -> Iterator[Finding]:
    """Yield what is wrong with the operators of Data-Juicer of a stage.

    Whether it is there (E3440), and what its operators are, is known where the run starts it; elsewhere a warning says
    what could not be checked (W5807).
    """
    if config.mode not in ("both", "explore"):
        return
    found: dict[str, dict[str, Any]] = {}
    pipeline = config.data_processor.task_pipeline
    if pipeline is not None:
        key = str(KEYS.data_processor.task_pipeline)
        found[key] = {"config_path": pipeline.config_path, "operators": pipeline.operators}
    for i, operator in enumerate(config.data_processor.experience_pipeline.operators):
        if operator.name == OPERATOR:
            args = {name: operator.args.get(name) for name in ("config_path", "operators")}
            found[str(KEYS.data_processor.experience_pipeline.operators[i].args)] = args
    if not found:
        return
    service = config.service.data_juicer or DataJuicerServiceConfig(auto_start=True)
    recipes: dict[str, Recipe] = {}
    for key, args in found.items():
        try:
            recipes[key] = read_recipe(key=key, config_path=args["config_path"], operators=args["operators"] or ())
        except ConfigError as error:
            yield Finding(error.code, key, error.args[0])
    for key, recipe in recipes.items():
        yield from _unrepeatable(recipe, key, config)
    owners = [(key, operator) for key, recipe in recipes.items() for operator in recipe.operators]
    if owners:
        yield from _of_operators(owners, service)


def _of_operators(owners: list[Owned], service: DataJuicerServiceConfig) -> Iterator[Finding]:
    """Yield operators that are refused, and what Data-Juicer says of them."""
    unasked, problems = _problems(owners, service)
    absent = {problem.index for problem in problems if problem.kind in ("unknown_operator", "joins")}
    for index, (key, (name, args)) in enumerate(owners):
        why = "" if index in absent else refusal(name, args, allowed=service.allowed_operators)
        if why:
            yield Finding("E5801", key, f"`{key}`: {why}")
    yield from unasked
    for problem in problems:
        key, code = owners[problem.index][0], "E5801" if problem.kind == "joins" else "E5804"
        yield Finding(code, key, f"`{key}`: {problem.message}")


def _problems(owners: list[Owned], service: DataJuicerServiceConfig) -> tuple[list[Finding], Sequence[OperatorProblem]]:
    """Return why Data-Juicer could not be asked, and what it says."""
    first = owners[0][0]
    names = ", ".join(dict.fromkeys(name for _, (name, _) in owners))
    unseen = f"`{first}`: the operators {names} and their arguments are not checked here"
    if not service.auto_start:
        return [Finding("W5807", first, f"{unseen}: they are those of the server at {service.server_url}")], []
    try:
        return [], operator_problems([operator for _, operator in owners], service)
    except EnvironmentProblem as error:
        if error.code == "E3440":  # a run would need it as well
            return [Finding(error.code, str(KEYS.service.data_juicer), error.args[0])], []
        return [Finding("W5807", first, f"{unseen}: {error.args[0]}; the server checks them when the run starts")], []


def _unrepeatable(recipe: Recipe, key: str, config: Config) -> Iterator[Finding]:
    """Yield models outside of a run that is to be repeatable."""
    own = {model.name for model in config.explorer.auxiliary_models}
    others = [name for name in asked_models(recipe) if name not in own]
    if config.deterministic and others:
        yield Finding(
            "W5808",
            key,
            f"`{key}`: the model {', '.join(others)} is that of a service: its scores may be others in another run, "
            "also with deterministic: true; name one of explorer.auxiliary_models to have the same",
        )
