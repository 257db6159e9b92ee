"""Classes that a configuration names by their place.

They are found and read as plugin files are: from the source, without importing anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from trinity.common.config.catalogue import Catalogue
from trinity.common.config.plugins import declared
from trinity.common.config.problems import Finding
from trinity.common.config.tree import Path, Tree
from trinity.utils.entry import Entry
from trinity.utils.kinds import ROLES
from trinity.utils.module_source import NotFoundError, find_definition
from trinity.utils.plugin_source import ClassReader, PluginName, PluginSource

# The registry of the names that each key holds, by the last part of the key.
KEYS_OF_NAMES = ROLES | {
    "algorithm_type": "algorithm_type",
    "default_workflow_type": "workflow",
    "default_eval_workflow_type": "workflow",
    "default_reward_fn_type": "reward_fn",
    "selector_type": "selector",
    "monitor_type": "monitor",
    "priority_fn": "priority_fn",
    "worker": "reward_model",
}
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def with_dotted(catalogue: Catalogue, tree: Tree) -> tuple[Catalogue, list[Finding]]:
    """Return the catalogue with a file's dotted names, and their problems.

    A name that leads nowhere is noted in the catalogue; the rule of its key refuses it.

    Args:
        catalogue: the other names.
        tree: the file, interpolations resolved.
    """
    names = dict.fromkeys(_names(tree))
    entries: dict[str, dict[str, Entry | None]] = {}
    faults: dict[tuple[str, str], str] = {}
    problems: list[Finding] = []
    for registry, name in names:
        try:
            entry, found = _read(catalogue, registry, name)
        except NotFoundError as error:
            faults[registry, name] = str(error)
            continue
        entries.setdefault(registry, {})[name] = entry
        problems += found
    return replace(catalogue, dotted=entries, dotted_faults=faults), problems


def _names(tree: Tree) -> Iterator[tuple[str, str]]:
    for path in tree.leaves():
        registry, value = registry_of(path), tree.get(path)
        if registry is not None and isinstance(value, str) and _DOTTED.fullmatch(value):
            yield registry, value


def registry_of(path: Path) -> str | None:
    """Return the registry whose names a key holds; None: it holds none."""
    if path[-1] == "name" and len(path) > 2 and path[-3] == "operators":
        return "operator"
    is_of_list = isinstance(path[-1], int) and len(path) > 1
    return KEYS_OF_NAMES.get(str(path[-2] if is_of_list else path[-1]))


def _read(catalogue: Catalogue, registry: str, name: str) -> tuple[Entry | None, list[Finding]]:
    package, _, last = name.rpartition(".")
    ours = catalogue.bases.get(last)
    # Trinity's packages import a class when it is asked for, so that their source does not tell.
    if ours is not None and f"{ours.path.partition(':')[0]}.".startswith(f"{package}."):
        return ours, []
    place = find_definition(name)
    source = PluginSource(place.path, module=place.module)
    node = source.classes.get(place.name)
    if node is None:
        if registry != "reward_fn":
            raise NotFoundError(f"{place.path} defines {place.name} as a function, not as a class")
        return None, []
    sources = list(_with_bases(source, node))
    found = PluginName(registry, name, place.path, node.lineno, of=node)
    return declared(found, source, kind=registry, reader=ClassReader(sources, catalogue.bases))


def _with_bases(source: PluginSource, node: ast.ClassDef) -> Iterator[PluginSource]:
    """Yield a source and those of the bases of a class that are not Trinity's."""
    yield source
    for base in node.bases:
        try:
            place = find_definition(f"{source.module}.{ast.unparse(base).partition('[')[0]}")
        except NotFoundError:
            continue
        if place.path != source.path and not place.module.startswith("trinity."):
            other = PluginSource(place.path, module=place.module)
            if place.name in other.classes:
                yield from _with_bases(other, other.classes[place.name])
