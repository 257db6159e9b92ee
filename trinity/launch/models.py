"""Hub ids of a plan become folders before anything else looks at them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from trinity.common.config import Config, ConfigErrors, Finding, Plan, StagePlan
from trinity.common.config.keys import key_named, path_of
from trinity.common.constants import BENCH, Mode
from trinity.common.errors import EnvironmentProblem
from trinity.common.models.hub import is_hub_id

Section = TypeVar("Section", bound=BaseModel)
Resolve = Callable[..., Path | None]

NAMES = {"model_path", "critic_model_path", "tokenizer_path", "input_tokenizer"}


def with_local_models(plan: Plan, resolve: Resolve) -> Plan:
    """Return `plan` with a folder in place of every hub id of a model.

    Args:
        plan: the resolved plan.
        resolve: returns the folder of `hub_id` for `needs_weights`; None leaves the id as it is.

    Raises:
        ConfigErrors: a model cannot be fetched (E3101).
    """
    wanted: dict[str, tuple[StagePlan, str, bool]] = {}
    for stage in plan.stages:
        for key, path, needs_weights in models_of(stage.config):
            if is_hub_id(path):
                first = wanted.setdefault(path, (stage, key, needs_weights))
                wanted[path] = (*first[:2], first[2] or needs_weights)
    folders: dict[str, str] = {}
    problems: list[Finding] = []
    for path, (stage, key, needs_weights) in wanted.items():
        try:
            folder = resolve(path, needs_weights=needs_weights)
        except EnvironmentProblem as error:
            problems.append(stage.tree.problem(error.code, path_of(key_named(key)), f"`{key}`: {error.args[0]}"))
        else:
            folders |= {} if folder is None else {path: str(folder)}
    if problems:
        raise ConfigErrors(problems)
    if not folders:
        return plan
    return replace(plan, stages=[replace(stage, config=with_places(stage.config, folders)) for stage in plan.stages])


def models_of(config: Config) -> Iterator[tuple[str, str, bool]]:
    """Yield key, path and need for weights of each model a stage reads."""
    explores, detailed = config.mode != Mode.TRAIN, config.trainer.trainer_config
    is_served = config.explorer.rollout_model.engine_type != "external"
    yield "model.model_path", config.model.model_path, is_served or config.mode not in (Mode.EXPLORE, BENCH)
    if detailed.critic.enable and config.model.critic_model_path:
        yield "model.critic_model_path", config.model.critic_model_path, True
    for index, auxiliary in enumerate(config.explorer.auxiliary_models if explores else ()):
        if auxiliary.model_path:
            key = f"explorer.auxiliary_models[{index}].model_path"
            yield key, auxiliary.model_path, auxiliary.engine_type != "external"
    reward, key = detailed.reward_model, "trainer.trainer_config.reward_model.model"
    if reward.enable and explores:
        yield f"{key}.path", reward.model.path or "", True
        yield f"{key}.input_tokenizer", reward.model.input_tokenizer or "", False


def with_places(
    section: Section, folders: Mapping[str, str], *, names: Collection[str] = (), parent: str = ""
) -> Section:
    """Return a section with other values of the keys that name models.

    Args:
        section: a configuration, or a part of it.
        folders: the new values by the old ones.
        names: further keys.
        parent: the key that the section is the value of.
    """

    def new(name: str, value: Any) -> Any:
        if isinstance(value, BaseModel):
            return with_places(value, folders, names=names, parent=name)
        if isinstance(value, list | tuple):
            return type(value)(new(name, item) for item in value)
        if isinstance(value, dict):
            return {key: new(parent, item) for key, item in value.items()}
        is_meant = name in NAMES or name in names or (parent, name) == ("model", "path")
        return folders.get(value, value) if isinstance(value, str) and is_meant else value

    update = {name: changed for name, value in section if (changed := new(name, value)) != value}
    return section.model_copy(update=update) if update else section
