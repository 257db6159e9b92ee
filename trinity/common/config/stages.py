"""Stages: each one merged over the global configuration, key by key.

Two exceptions: a stage that changes `algorithm_type` takes the new type's defaults for everything under
`algorithm` except `optimizer`; a buffer or taskset that gets another `name` is replaced, not merged.
"""

from __future__ import annotations

import copy
from typing import Any

from trinity.common.config.config import NAME_RULE, StageConfig, is_folder_name
from trinity.common.config.nearest import nearest
from trinity.common.config.problems import Finding
from trinity.common.config.schema_index import default_at, model_at
from trinity.common.config.tree import Origin, Path, Tree, dotted

STAGED = tuple(name for name in StageConfig.model_fields if name != "stage_name")
_NAMED: tuple[Path, ...] = (
    ("buffer", "explorer_input", "taskset"),
    ("buffer", "trainer_input", "experience_buffer"),
)
_AUXILIARY: Path = ("buffer", "trainer_input", "auxiliary_buffers")


def split_stages(tree: Tree) -> tuple[Tree, list[tuple[str | None, Tree]], list[Finding]]:
    """Return the global tree, each stage's merged tree, and the problems.

    Each stage's tree comes with its name. The problems are those of `stages` itself. Without stages, the list
    holds the global tree once, under the name `None`.
    """
    stages = tree.values.get("stages")
    base = tree.copy()
    base.drop(("stages",))
    if not stages:
        return base, [(None, base)], []
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        problem = tree.problem(
            "E1101",
            ("stages",),
            "`stages` must be a list of mappings",
            rule="list of mappings",
            suggestion="write `- stage_name: first` below it",
        )
        return base, [(None, base)], [problem]
    problems = _check_names(tree, stages)
    merged: list[tuple[str | None, Tree]] = []
    for index, stage in enumerate(stages):
        problems += _check_keys(tree, index, stage)
        problems += _shadowed(tree, base, index)
        name = stage.get("stage_name")
        merged.append((name if is_folder_name(str(name)) else None, _merge_stage(tree, base, index)))
    return base, merged, problems


def _check_names(tree: Tree, stages: list[dict[str, Any]]) -> list[Finding]:
    problems: list[Finding] = []
    first: dict[str, int] = {}
    for index, stage in enumerate(stages):
        path: Path = ("stages", index, "stage_name")
        name = stage.get("stage_name")
        if name in (None, ""):
            problems.append(
                tree.problem(
                    "E1601",
                    path,
                    f"stage {index + 1} has no `stage_name`",
                    suggestion="give every stage its own `stage_name`",
                )
            )
        elif not is_folder_name(str(name)):
            problems.append(
                tree.problem(
                    "E1304",
                    path,
                    f"`{dotted(path)}` {NAME_RULE}, got {name!r}",
                    rule=NAME_RULE,
                    value=name,
                    suggestion="the stage's folder has this name; choose a plain one",
                )
            )
        elif str(name) in first:
            origin = tree.origin(("stages", first[str(name)], "stage_name"))
            place = origin.describe() if origin else "above"
            problems.append(
                tree.problem(
                    "E1601",
                    path,
                    f"stage name `{name}` is used twice, first in {place}",
                    value=name,
                    suggestion="stage names are unique",
                )
            )
        else:
            first[str(name)] = index
    return problems


def _check_keys(tree: Tree, index: int, stage: dict[str, Any]) -> list[Finding]:
    problems = []
    for name in stage:
        if name == "stage_name" or name in STAGED:
            continue
        path: Path = ("stages", index, name)
        near = nearest(name, [*STAGED, "stage_name"])
        if model_at(()) is not None and name in model_at(()).model_fields:  # type: ignore[union-attr]
            problems.append(
                tree.problem(
                    "E1602",
                    path,
                    f"`{name}` cannot differ between stages",
                    suggestion=f"allowed in a stage: {', '.join(STAGED)}",
                )
            )
        else:
            hint = f"did you mean `{near}`?" if near else f"allowed in a stage: {', '.join(STAGED)}"
            problems.append(tree.problem("E1203", path, f"unknown key `{dotted(path)}`", suggestion=hint))
    return problems


def _shadowed(tree: Tree, base: Tree, index: int) -> list[Finding]:
    """Warn about `--set` values that a stage's own line replaces."""
    problems = []
    for path, chain in base.origins.items():
        own = tree.origins.get(("stages", index, *path))
        if chain[0].kind == "set" and own and own[0].kind != "set":
            at = dotted(("stages", index, *path))
            problems.append(
                base.problem(
                    "W1603",
                    path,
                    f"stage {index + 1} replaces this value in {own[0].describe()}",
                    suggestion=f"write --set {at}=...",
                )
            )
    return problems


def _merge_stage(tree: Tree, base: Tree, index: int) -> Tree:
    prefix: Path = ("stages", index)
    stage = {name: value for name, value in tree.get(prefix).items() if name in STAGED and value is not None}
    merged = base.copy()
    new_type = (
        (stage.get("algorithm") or {}).get("algorithm_type") if isinstance(stage.get("algorithm"), dict) else None
    )
    old = merged.values.get("algorithm")
    if new_type is not None and isinstance(old, dict) and new_type != old.get("algorithm_type", "grpo"):
        for name in [n for n in old if n != "optimizer"]:
            merged.drop(("algorithm", name))
    for name, value in stage.items():
        _merge(merged, tree, (name,), value, prefix)
    return merged


def _merge(merged: Tree, tree: Tree, path: Path, value: Any, prefix: Path) -> None:
    """Merge a value of the stage at `prefix + path` into the global values."""
    old = _get(merged, path)
    is_replaced = isinstance(value, dict) and isinstance(old, dict) and _renamed(path, old, value)
    if isinstance(value, dict) and isinstance(old, dict) and not is_replaced:
        own = tuple(_as_stage(o, prefix) for o in tree.origins.get((*prefix, *path), ()))
        merged.origins[path] = (*own, *merged.origins.get(path, ()))
        for name, inner in value.items():
            _merge(merged, tree, (*path, name), inner, prefix)
        return
    before = merged.origins.get(path, ())
    merged.drop(path)
    merged.put(path, copy.deepcopy(value))
    for place, chain in tree.origins.items():
        if place[: len(prefix) + len(path)] == (*prefix, *path):
            merged.origins[place[len(prefix) :]] = tuple(_as_stage(o, prefix) for o in chain)
    merged.origins[path] = (*merged.origins.get(path, ()), *before)


def _renamed(path: Path, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether `new` is another buffer or taskset than `old`."""
    is_named = path in _NAMED or (path[:-1] == _AUXILIARY)
    default = path[-1] if path[:-1] == _AUXILIARY else default_at((*path, "name"))[1]
    return is_named and "name" in new and new["name"] != old.get("name", default)


def _get(tree: Tree, path: Path) -> Any:
    try:
        return tree.get(path)
    except KeyError:
        return None


def _as_stage(origin: Origin, prefix: Path) -> Origin:
    kind = "stage" if origin.kind == "file" else origin.kind
    return Origin(kind, origin.file, origin.line, origin.column, origin.written or prefix, origin.text)
