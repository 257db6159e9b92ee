"""`trinity convert config`: a file in the words of another tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, ConfigErrors, Finding, examine
from trinity.common.config.dialects import open_source
from trinity.common.config.dialects.backwards import as_modelarts, as_verl, nested
from trinity.common.config.dialects.showing import converted
from trinity.common.config.interpolation import resolve_interpolations
from trinity.common.config.showing import leaves
from trinity.common.config.tree import Path as TreePath
from trinity.common.config.tree import Tree, dotted, value_at

DIALECTS = ("trinity", "verl", "modelarts")


@dataclass(frozen=True)
class Converted:
    """A converted file.

    Attributes:
        text: YAML.
        source: whose file it was.
        problems: of the file, and what its new form cannot say.
    """

    text: str
    source: str
    problems: list[Finding]


def from_foreign(path: Path, overrides: Sequence[str]) -> Converted:
    """Return a file of veRL or ModelArts as one of ours, key by key.

    Raises:
        ConfigErrors: it is ours already (E1946), or cannot be read.
    """
    opened = open_source(path, overrides)
    if opened.dialect is None:
        message = f"{path} is no veRL or ModelArts file: it has no actor_rollout_ref, data or backend_config"
        way_out = "write --to modelarts or --to verl to turn a file of ours into theirs"
        raise ConfigErrors([Finding("E1946", "", message, file=str(path), suggestion=way_out)])
    return Converted(converted(opened), opened.dialect, opened.problems)


def to_foreign(path: Path, overrides: Sequence[str], *, to: str) -> Converted:
    """Return a file of any dialect as one of veRL or ModelArts.

    The result is read again: each written key of ours that then has another value is an error (E1947).

    Raises:
        ConfigErrors: the file cannot be read, or has stages (E1948).
    """
    opened = open_source(path, overrides)
    tree, problems = resolve_interpolations(opened.tree)
    if tree.values.get("stages"):
        message = f"{path} has stages, and a file of {to} is one run"
        raise ConfigErrors(
            [Finding("E1948", "stages", message, file=str(path), suggestion="convert a file of one stage")]
        )
    values = as_modelarts(tree.values) if to == "modelarts" else nested(as_verl(tree.values))
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=2**20)
    problems = [problem for problem in (*opened.problems, *problems) if problem.is_error]
    if not problems:
        problems = _unsaid(tree, values, to=to, file=str(path), is_whole=opened.dialect is not None)
    return Converted(text, opened.dialect or "Trinity", problems)


def _unsaid(tree: Tree, foreign: dict[str, Any], *, to: str, file: str, is_whole: bool) -> list[Finding]:
    """Return what a configuration of ours means and its new form does not.

    Absent keys of a foreign file have that tool's defaults on both sides, so that with `is_whole` all keys are
    compared; of a file of ours those that it writes.
    """
    values = tree.values
    plan, problems = examine(values, catalogue=BUILT_IN, schema_only=True)
    before, known = plan.stages[0].config, {problem.code for problem in problems if problem.is_error}
    plan, problems = examine(foreign, catalogue=BUILT_IN, schema_only=True)
    after = plan.stages[0].config
    # What is wrong with the file anyway is no matter of its form.
    added = [problem for problem in problems if problem.is_error and problem.code not in known]
    return added or [
        _unsaid_at(tree, place, value, other=_at(after, place), to=to, file=file)
        for place, value in (leaves(before.model_dump(exclude={"written"})) if is_whole else leaves(values))
        if _at(before, place) != _at(after, place)
    ]


def _unsaid_at(tree: Tree, place: TreePath, value: Any, *, other: Any, to: str, file: str) -> Finding:
    found = tree.problem(
        "E1947",
        place,
        f"`{dotted(place)}` is {value!r}, which a file of {to} does not say; it would be {other!r}",
        suggestion="remove it, or keep the file as it is",
    )
    return found if found.file is not None else replace(found, file=file)


def _at(config: Config, place: TreePath) -> Any:
    try:
        return value_at(config, place)
    except KeyError:
        return None
