"""The state of a resolution: values, origins, derivations and problems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast

from trinity.common.config.base import Section
from trinity.common.config.catalogue import Catalogue
from trinity.common.config.config import Config, ModeName
from trinity.common.config.keys import Key, path_of, value_of
from trinity.common.config.overrides import parse_path
from trinity.common.config.problems import Finding
from trinity.common.config.refusals import Refusal
from trinity.common.config.tree import Origin, Path, Tree, value_at

T = TypeVar("T")


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
class Resolution:
    """The working copy that rules read and fill.

    A value is read from `config`; where its key matters too, a key is named (see `keys`), and `get` returns the value.

    Attributes:
        typed: the configuration as the schema reads it, before anything is derived.
        tree: what was written, with origins.
        catalogue: the known names.
        cwd: the folder that relative paths refer to.
        stage_name: name of the stage, if the run has stages.
        looks_at_machine: what this machine has may decide; otherwise only the file does.
        broken: paths whose written value was refused; rules that need them report nothing.
        config: the configuration with derived values; it has lists where the schema has tuples.
        derived: values filled in, in order.
        problems: what is wrong, in order of finding.
    """

    typed: Config
    tree: Tree
    catalogue: Catalogue
    cwd: FilePath
    stage_name: str | None = None
    looks_at_machine: bool = True
    broken: set[Path] = field(default_factory=set)
    config: Config = field(init=False)
    derived: list[Derived] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = opened(self.typed)

    @property
    def mode(self) -> ModeName:
        """The mode of the run or stage."""
        return self.config.mode

    @property
    def explores(self) -> bool:
        """Whether the run generates experiences."""
        return self.mode != "train"

    @property
    def schema(self) -> str:
        """The kind of experiences trained on: `experience`, `sft`, `cpt` or `dpo`."""
        return self.catalogue.schema_of(self.config.algorithm.algorithm_type)

    @property
    def trains_on_dataset(self) -> bool:
        """Whether the algorithm type trains on a dataset, not on rollouts."""
        return self.schema != "experience"

    def get(self, key: Key[T]) -> T:
        """Return the value of a key.

        Raises KeyError for a missing entry of a free mapping.
        """
        return value_of(self.config, key)

    def filled(self, key: Key[T | None]) -> T:
        """Return the value of a key that an earlier rule fills if it is absent."""
        value = self.get(key)
        assert value is not None, f"{key} is open"
        return value

    def is_given(self, key: Key[object]) -> bool:
        """Return whether a key was written, is not null, and was not refused."""
        path = path_of(key)
        if path in self.broken:
            return False
        try:
            written = self.tree.get(path)
            is_null = written is None or (written == "None" and value_at(self.typed, path) is None)
        except KeyError:
            return False
        return not is_null

    def is_own(self, key: Key[object]) -> bool:
        """Return whether a key was written in this stage, or there are no stages."""
        if not self.is_given(key):
            return False
        origin = self.origin(key)
        return self.stage_name is None or (origin is not None and origin.written[:1] == ("stages",))

    def origin(self, key: Key[object]) -> Origin | None:
        """Return where a key was written, if it was."""
        return self.tree.origin(path_of(key))

    def derive(self, key: Key[object], value: Any, reason: object) -> None:
        """Set a value and record the reason; do nothing if it is already set."""
        if self.get(key) == value:
            return
        self.put(key, value)
        name = str(key)
        self.derived = [d for d in self.derived if d.key != name]
        self.derived.append(Derived(name, plain_value(value), str(reason)))

    def follow(self, key: Key[object], source: Key[object]) -> None:
        """Give a key the value of another one."""
        self.derive(key, self.get(source), source)

    def put(self, key: Key[object], value: Any) -> None:
        """Set a value without recording a reason."""
        *above, name = path_of(key)
        parent = value_at(self.config, tuple(above))
        values: Any = vars(parent) if isinstance(parent, Section) else parent
        values[name] = opened(value)

    def problem(
        self, code: str, key: Key[object], message: str, *, involves: Iterable[Key[object]] = (), **details: Any
    ) -> None:
        """Note a problem unless a value that it depends on was already refused."""
        for name in (key, *involves):
            path = path_of(name)
            if any(b[: len(path)] == path or path[: len(b)] == b for b in self.broken):
                return
        path = path_of(key)
        details.setdefault("value", self._value(path))
        self.problems.append(self.tree.problem(code, path, message, **details))

    def refuse(self, refusal: Refusal) -> None:
        """Note a refusal as a problem."""
        self.problem(
            refusal.code,
            refusal.key,
            refusal.message,
            involves=refusal.involves,
            rule=refusal.rule,
            suggestion=refusal.suggestion,
        )

    def _value(self, path: Path) -> Any:
        try:
            return self.tree.get(path)
        except KeyError:
            return None


def opened(value: T) -> T:
    """Return a mutable copy of a value: open sections, lists for tuples."""
    made: Any = value
    if isinstance(value, Section):
        made = value.model_copy()
        vars(made).update({name: opened(inner) for name, inner in vars(value).items()})
    elif isinstance(value, dict):
        made = {name: opened(inner) for name, inner in value.items()}
    elif isinstance(value, list | tuple):
        made = [opened(inner) for inner in value]
    return cast(T, made)


def plain_value(value: Any) -> Any:
    """Return a copy of a value as nested dicts and lists."""
    if isinstance(value, Section | dict):
        items = vars(value) if isinstance(value, Section) else value
        return {name: plain_value(inner) for name, inner in items.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    return value
