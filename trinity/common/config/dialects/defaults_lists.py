"""The files that a `defaults:` list of hydra names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from trinity.common.config.nearest import nearest
from trinity.common.config.overrides import parse_path, put_override
from trinity.common.config.problems import ConfigErrors, Finding
from trinity.common.config.reading import read_file
from trinity.common.config.tree import Path, Tree

SELF = "_self_"
_BACKENDS = ("dp", "megatron", "torchtitan", "veomni", "mindspeed", "automodel")
VERLS_OWN = frozenset(
    {
        "ppo_trainer", "ppo_megatron_trainer", "legacy_data", "legacy_reward_impl", "hf_model", "rollout_correction",
        "actor", "critic", "ref", "rollout", "reward", "reward_model", "reward_manager", "data", "profiler",
        "npu_profile", "algorithm", "distillation", "transfer_queue", "fsdp", "default", "dp_reward_loop", *_BACKENDS,
        *(f"_generated_ppo_{name}trainer" for name in ("", "megatron_", "torchtitan_", "veomni_")),
        *(f"{name}_{part}" for name in _BACKENDS for part in ("actor", "critic", "ref", "reward_model")),
    }
)  # fmt: skip
"""Files of veRL's own, whose values are the defaults here."""


@dataclass(frozen=True)
class _Entry:
    """An entry of a `defaults:` list.

    Attributes:
        package: the section that its values are for.
        name: its file without the ending; None: there is nothing to read.
        is_optional: it may be missing.
    """

    package: Path
    name: str | None
    is_optional: bool = False


def with_defaults_list(
    tree: Tree, folder: FilePath, *, root: FilePath | None = None, above: tuple[FilePath, ...] = ()
) -> tuple[Tree, list[Finding]]:
    """Return the tree with the files of its `defaults:` list below it.

    Files of veRL's own are not read: what they say is in the table. Others are looked for beside the file, and have
    lists of their own. Of two files the later one wins.

    Args:
        tree: the values of a file.
        folder: where the file is.
        root: the folder of the first file, which names with a slash in front begin at; None: `folder`.
        above: the files whose lists led here.
    """
    listed = tree.values.get("defaults")
    if listed is None:
        return tree, []
    result, below, problems = tree.copy(), Tree(), list[Finding]()
    result.drop(("defaults",))
    entries = listed if isinstance(listed, list) else [listed]
    target = below
    for index, written in enumerate(entries):
        if written == SELF:
            target = result
            continue
        entry, where = _entry(written), ("defaults", index)
        if entry.name is None:
            continue
        base = (root or folder) if entry.name.startswith("/") else folder
        file = base / f"{entry.name.lstrip('/')}.yaml"
        if file.is_file():
            other, found = _read(tree, where, file, root or folder, above)
            problems += found
            _merge(target, _moved(other, entry.package), wins=True)
        elif not entry.is_optional and (own := entry.name.rpartition("/")[2]) not in VERLS_OWN:
            near = nearest(own, VERLS_OWN)
            problems.append(
                tree.problem(
                    "E1944", where, f"`defaults`: there is no {file}, and veRL has no file of this name", value=written,
                    suggestion=f"did you mean `{near}`?" if near else "write it beside this one, or remove the entry",
                )
            )  # fmt: skip
    _merge(result, below, wins=False)
    return result, problems


def _read(
    tree: Tree, where: Path, file: FilePath, root: FilePath, above: tuple[FilePath, ...]
) -> tuple[Tree, list[Finding]]:
    """Return a listed file with the files that it lists itself."""
    here = file.resolve()
    if here in above:
        message = f"`defaults`: {file} is in the list of a file that it lists itself"
        return Tree(), [tree.problem("E1944", where, message, suggestion="remove the entry")]
    try:
        return with_defaults_list(read_file(file), file.parent, root=root, above=(*above, here))
    except ConfigErrors as error:
        return Tree(), list(error.problems)


def _entry(entry: Any) -> _Entry:
    """Return what an entry of a `defaults:` list names."""
    if isinstance(entry, str):
        name, _, package = entry.removeprefix("optional ").partition("@")
        is_root = package in ("", "_global_", "_here_")
        return _Entry(() if is_root else parse_path(package) or (), name, entry.startswith("optional "))
    if not isinstance(entry, dict) or len(entry) != 1:
        return _Entry((), str(entry))
    (group, option), *_ = entry.items()
    words = str(group).split()
    is_optional, group = "optional" in words[:-1], words[-1] if words else ""
    if group.startswith("hydra/") or option is None:
        return _Entry((), None)
    name, _, package = group.partition("@")
    package = "" if package in ("_global_", "_here_") else package
    place = parse_path(package) or (() if "@" in group else (name.replace("/", "."),))
    return _Entry(place, f"{name}/{option}", is_optional)


def _moved(tree: Tree, package: Path) -> Tree:
    values: Any = tree.values
    for part in reversed(package):
        values = {part: values}
    return Tree(values, {(*package, *path): chain for path, chain in tree.origins.items()})


def _merge(tree: Tree, other: Tree, *, wins: bool) -> None:
    """Add the values of another tree, which win over those of this one or not."""
    for path in other.leaves():
        if any(isinstance(part, int) for part in path[:-1]):
            continue
        where = path[:-1] if isinstance(path[-1], int) else path
        try:
            tree.get(where)
            is_there = True
        except KeyError:
            is_there = False
        if wins or not is_there:
            origin = other.origin(where)
            assert origin is not None, "every value of a file has its place"
            put_override(tree, where, other.get(where), origin)
