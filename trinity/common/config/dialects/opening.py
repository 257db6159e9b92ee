"""A configuration of any dialect as our tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from trinity.common.config.dialects.conversions import CONVERSIONS
from trinity.common.config.dialects.defaults_lists import with_defaults_list
from trinity.common.config.dialects.foreign_key import UNSET
from trinity.common.config.dialects.hydra import apply_hydra
from trinity.common.config.dialects.modelarts import (
    BACKEND,
    DEFAULTS,
    OUTPUT,
    WRAPPER,
    apply_wrapper,
    check_required,
    is_modelarts,
    unwrapped,
    with_prefix,
)
from trinity.common.config.dialects.spelling import AsWritten, meant
from trinity.common.config.dialects.table import by_name, children
from trinity.common.config.dialects.translation import Translation
from trinity.common.config.dialects.words import words_of
from trinity.common.config.given import ConfigSource, read_source
from trinity.common.config.interpolation import SHARED_WITH_VERL, resolve_interpolations
from trinity.common.config.overrides import apply_overrides, parse_path
from trinity.common.config.problems import Finding
from trinity.common.config.schema_index import annotation_at
from trinity.common.config.tree import Path, Tree, dotted

VERL, MODELARTS = "veRL", "ModelArts"
_CERTAIN = ("actor_rollout_ref", "data", "defaults")


@dataclass(frozen=True)
class Opened:
    """A configuration as our tree.

    Attributes:
        tree: our values, each with the place where it was written.
        problems: of overrides and of the translation.
        dialect: `veRL` or `ModelArts`; None: it was ours.
        translation: how it was translated, if it was.
    """

    tree: Tree
    problems: list[Finding]
    dialect: str | None = None
    translation: Translation | None = None


def open_source(
    source: ConfigSource, overrides: Sequence[str] = (), *, as_written: Callable[[Tree], Tree] | None = None
) -> Opened:
    """Return a configuration as our tree, with overrides applied.

    Of a foreign file, overrides of foreign keys are applied before it is translated, and those of our keys after it.

    Args:
        source: the file, or its values.
        overrides: `a.b=c`, applied in order.
        as_written: takes from a file of ours what a run filled in, before overrides are applied.

    Raises:
        ConfigErrors: the file cannot be read as YAML at all.
    """
    tree = read_source(source)
    dialect = dialect_of(tree.values)
    if dialect is None:
        tree = tree if as_written is None else as_written(tree)
        tree, problems = apply_overrides(tree, overrides)
        return Opened(tree, problems)
    problems = list[Finding]()
    if dialect == MODELARTS:
        tree, problems = unwrapped(tree)
    folder = FilePath(source).parent if isinstance(source, str | FilePath) else FilePath()
    itself = (FilePath(source).resolve(),) if isinstance(source, str | FilePath) else ()
    tree, found = with_defaults_list(tree, folder, above=itself)
    problems += found
    foreign = [(number, text) for number, text in enumerate(overrides, start=1) if is_foreign(text)]
    tree, found = apply_hydra(tree, foreign)
    problems += found
    translation, found = _translated(tree, dialect)
    problems += found
    translation.ours.words = words_of(translation, prefix=f"{BACKEND}." * (dialect == MODELARTS))
    ours, found = apply_overrides(translation.ours, [text for text in overrides if not is_foreign(text)])
    return Opened(ours, [*problems, *found], dialect, translation)


def dialect_of(values: dict[str, Any]) -> str | None:
    """Return the dialect of a file's values; None: it is ours."""
    if is_modelarts(values):
        return MODELARTS
    own = [name for name in values if name not in children()[""] and annotation_at((name,)) is not None]
    return VERL if any(name in values for name in _CERTAIN) and not own else None


def is_foreign(override: str) -> bool:
    """Return whether an override is of a foreign key, in a foreign file."""
    name = override.partition("=")[0].strip()
    if name.startswith(("+", "~")) or name.partition(".")[0] in WRAPPER:
        return True
    path = parse_path(name)
    if path is None:
        return False
    first = path[0]
    if first in SHARED_WITH_VERL:
        return name in by_name() or annotation_at(path) is None
    return first in children()[""]


def _translated(tree: Tree, dialect: str) -> tuple[Translation, list[Finding]]:
    wrapped = tree.copy()
    tree.words = AsWritten()
    wrapper = {name: tree.values.pop(name) for name in WRAPPER if name in tree.values}
    resolved, problems = tree, list[Finding]()
    if any("${" in str(tree.get(path)) for path in tree.leaves()):
        resolved, problems = resolve_interpolations(_with_referenced(tree), meant=meant)
        resolved = _without_added(resolved, tree)
    referring = frozenset(dotted(path) for path in tree.leaves() if "${" in str(tree.get(path)))
    translation = Translation(resolved, DEFAULTS if dialect == MODELARTS else {}, referring=referring)
    translation.read()
    translation.apply_rows()
    for convert in CONVERSIONS.values():
        convert(translation)
    translation.tell_shipped()
    if dialect != MODELARTS:
        for name in wrapper:
            way_out = "write `trainer.default_local_dir`" if name == OUTPUT else "write the key that is in it"
            message = f"`{name}` is no key of veRL: it is one of ModelArts' form"
            origins = wrapped.leaves()
            place = next((path for path in origins if path[0] == name), (name,))
            translation.problems.append(wrapped.problem("E1941", place, message, suggestion=way_out))
    if dialect == MODELARTS:
        apply_wrapper(translation, tree, wrapper)
        with_prefix(translation)
        check_required(translation, tree, wrapper)
    return translation, [*problems, *translation.problems]


def _with_referenced(tree: Tree) -> Tree:
    """Return the tree with the defaults of all absent keys.

    Interpolations may refer to what the file leaves to veRL.
    """
    whole = tree.copy()
    for name, row in by_name().items():
        path = parse_path(name)
        if row.default is not UNSET and path is not None:
            _add(whole.values, path, row.default)
    return whole


def _add(values: dict[str, Any], path: Path, value: Any) -> None:
    node: Any = values
    for part in path[:-1]:
        if not isinstance(node, dict):
            return
        node = node.setdefault(part, {})
    if isinstance(node, dict):
        node.setdefault(path[-1], value)


def _without_added(resolved: Tree, written: Tree) -> Tree:
    """Return the resolved tree without what the written one lacks."""
    return Tree(_common(resolved.values, written.values), resolved.origins, written.words)


def _common(resolved: Any, written: Any) -> Any:
    if not isinstance(resolved, dict) or not isinstance(written, dict):
        return resolved
    return {name: _common(value, written[name]) for name, value in resolved.items() if name in written}
