"""Older names of keys, and veRL names of keys that differ here."""

from __future__ import annotations

import functools

from trinity.common.config.base import is_derived
from trinity.common.config.config import Config
from trinity.common.config.problems import Finding
from trinity.common.config.schema_index import facts_at, facts_below, fields_of
from trinity.common.config.tree import Path, Tree, dotted


@functools.cache
def _verl_names() -> dict[str, str]:
    """Return the key for each veRL name that has no key of its own elsewhere."""
    root = ("trainer", "trainer_config")
    elsewhere = ((path, field) for path, field in fields_of(Config) if path[0] != "stages" and path[:2] != root)
    own = {str(path[-1]) for path, field in elsewhere if not is_derived(field)}
    said = {str(path[-1]): facts.set_from for path, facts in facts_below(root) if facts.set_from is not None}
    declared = {name: facts.set_from or dotted(path) for path, facts in facts_below(()) for name in facts.verl_names}
    return {name: source for name, source in said.items() if name not in own} | declared


def verl_name(path: Path) -> str | None:
    """Return the key for a veRL key outside `trainer.trainer_config`."""
    if path[:2] == ("trainer", "trainer_config"):
        return None
    return _verl_names().get(str(path[-1]))


def check_older_names(tree: Tree) -> list[Finding]:
    """Return a warning for each accepted older key that is written."""
    problems = []
    for path in tree.origins:
        place, facts = facts_at(path)
        renamed = facts.renamed
        if renamed is not None and renamed.since and place == path and tree.get(path) not in (None, False):
            problems.append(tree.problem("W1301", path, **renamed.deprecation(dotted(path))))
    return problems
