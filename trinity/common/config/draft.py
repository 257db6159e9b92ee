"""A configuration while it is resolved: values, where they come from, what was derived, what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from trinity.common.config.base import Section
from trinity.common.config.catalogue import Catalogue
from trinity.common.config.overrides import parse_path
from trinity.common.config.problems import Finding
from trinity.common.config.tree import Origin, Path, Tree, place_problem, value_at


@dataclass(frozen=True)
class Derived:
    """A value that was not written but follows from others.

    Attributes:
        key: dotted path.
        value: the value that counts.
        reason: why, in one line.
    """

    key: str
    value: Any
    reason: str

    @property
    def is_copy(self) -> bool:
        """Whether the value is that of another key, which the reason names."""
        return parse_path(self.reason) is not None and " " not in self.reason


@dataclass
class Draft:
    """The working copy that rules read and fill.

    Attributes:
        values: the configuration as nested dicts and lists.
        tree: what was written, with origins.
        catalogue: the known names.
        cwd: the folder that relative paths refer to.
        stage_name: name of the stage, if the run has stages.
        looks_at_machine: what this machine has may decide; otherwise only the file does.
        broken: paths whose written value was refused; rules that need them stay silent.
        typed: the values as the schema reads them, before anything is derived.
        derived: values filled in, in order.
        problems: what is wrong, in order of finding.
    """

    values: dict[str, Any]
    tree: Tree
    catalogue: Catalogue
    cwd: FilePath
    stage_name: str | None = None
    looks_at_machine: bool = True
    broken: set[Path] = field(default_factory=set)
    typed: dict[str, Any] = field(default_factory=dict)
    derived: list[Derived] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)

    @property
    def mode(self) -> str:
        """The mode of the run or stage."""
        return str(self.values["mode"])

    @property
    def explores(self) -> bool:
        """Whether the run generates experiences."""
        return self.mode != "train"

    @property
    def schema(self) -> str:
        """The kind of experiences that the algorithm type trains on: `experience`, or `sft`, `cpt` or `dpo`."""
        entry = self.catalogue.entry("algorithm_type", self.get("algorithm.algorithm_type"))
        return "experience" if entry is None else entry.schema

    @property
    def trains_on_dataset(self) -> bool:
        """Whether the algorithm type trains on a dataset, not on rollouts."""
        return self.schema != "experience"

    def get(self, key: str) -> Any:
        """Return the value at a dotted path."""
        return value_at(self.values, path_of(key))

    def is_given(self, key: str) -> bool:
        """Return whether a key was written with a value other than null; one that was refused is as if not written."""
        path = path_of(key)
        if path in self.broken:
            return False
        try:
            written = self.tree.get(path)
            is_null = written is None or (written == "None" and value_at(self.typed, path) is None)
        except KeyError:
            return False
        return not is_null

    def is_own(self, key: str) -> bool:
        """Return whether a key was written in this stage, or in a file that has no stages."""
        if not self.is_given(key):
            return False
        origin = self.origin(key)
        return self.stage_name is None or (origin is not None and origin.written[:1] == ("stages",))

    def origin(self, key: str) -> Origin | None:
        """Return where a key was written, if it was."""
        return self.tree.origin(path_of(key))

    def derive(self, key: str, value: Any, reason: str) -> None:
        """Set a value and remember why; a value that is there already stays unmentioned."""
        path = path_of(key)
        parent: Any = value_at(self.values, path[:-1])
        if parent[path[-1]] == value:
            return
        parent[path[-1]] = value
        self.derived = [d for d in self.derived if d.key != key]
        self.derived.append(Derived(key, value, reason))

    def problem(self, code: str, key: str, message: str, *, involves: Iterable[str] = (), **details: Any) -> None:
        """Note a problem at a key, unless a value that it depends on was refused already."""
        for name in (key, *involves):
            path = path_of(name)
            if any(b[: len(path)] == path or path[: len(b)] == b for b in self.broken):
                return
        path = path_of(key)
        details.setdefault("value", self._value(path))
        self.problems.append(place_problem(self.tree.origin(path), code, path, message, **details))

    def _value(self, path: Path) -> Any:
        try:
            return self.tree.get(path)
        except KeyError:
            return None


def path_of(key: str) -> Path:
    """Return the path of a dotted key; keys here are our own, so they are valid."""
    return (parse_path(key) or (key,)) if key else ()


def plain_values(config: Section) -> dict[str, Any]:
    """Return a section as nested dicts and lists that can be changed."""
    values = config.model_dump(mode="python")
    return {name: plain_value(value) for name, value in values.items()}


def plain_value(value: Any) -> Any:
    """Return a value with tuples as lists, copied."""
    if isinstance(value, dict):
        return {name: plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    return value
