"""A foreign file becomes our values, key by key."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trinity.common.config.dialects.foreign_key import KINDS, UNSET, Fate, ForeignKey
from trinity.common.config.dialects.shipped import SHIPPED, is_as_shipped
from trinity.common.config.dialects.spelling import strays, unknown, written_path
from trinity.common.config.dialects.table import by_name, is_section, row_of
from trinity.common.config.overrides import parse_path
from trinity.common.config.problems import Finding, described
from trinity.common.config.schema_index import default_at
from trinity.common.config.tree import Origin, Path, Tree, dotted

_OF_FILES = ("W1940", "W1942")
FOREIGN = "foreign"
"""Kind of the origin of a value that a foreign key gave; `written` is that key."""


_NO_ROW = ForeignKey("")


@dataclass(frozen=True)
class Became:
    """What one foreign key became.

    Attributes:
        name: the key, as the table has it.
        written: the key as the file has it.
        fate: what happens to it.
        why: why it changes nothing, or is refused.
        value: what was written.
    """

    name: str
    written: str
    fate: Fate
    why: str
    value: Any


@dataclass
class Translation:
    """A foreign file, and what it becomes.

    Conversions read by `value` and write by `put`.

    Attributes:
        foreign: the values of the file, interpolations resolved.
        defaults: values of absent keys, over those of the table.
        ours: what it becomes.
        problems: what cannot be, and what is reported.
        became: the written keys in their order.
        sources: the foreign keys that gave each of our keys.
        shipped: what would be told of values that are veRL's own defaults, or follow another key of the file.
        referring: the keys whose values are interpolations in the file.
    """

    foreign: Tree
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ours: Tree = field(default_factory=Tree)
    problems: list[Finding] = field(default_factory=list)
    became: list[Became] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    shipped: list[Finding] = field(default_factory=list)
    referring: frozenset[str] = frozenset()
    _written: dict[str, tuple[Any, Origin | None]] = field(default_factory=dict)

    def read(self) -> None:
        """Take down the keys of the file, under their newest names."""
        for path in list(_keys(self.foreign.values, ())):
            name, value = dotted(path), self.foreign.get(path)
            if path[-1] == "_target_":
                continue
            row, origin = row_of(name), self.foreign.origin(path)
            if row is None and value is None and is_section(name):
                continue  # a section without anything in it
            if row is None:
                self.problems.append(unknown(self.foreign, path))
                continue
            if row.is_section and row.name != name:
                continue  # its section was taken down as a whole
            if row.is_section and origin is not None:
                origin = replace(origin, written=written_path(self.foreign, path))
            for word in strays(by_name()[row.newer] if row.newer else row, value):
                self.problems.append(unknown(self.foreign, (*path, word)))
                value = {key: inner for key, inner in value.items() if key != word}
            self._note(row, name, value, origin)
        self._check_kinds()

    def _check_kinds(self) -> None:
        """Tell and leave out values that no conversion can read (E1101)."""
        for name, (value, origin) in list(self._written.items()):
            row = row_of(name)
            kind = "" if row is None else row.kind_read
            if value is None and row is not None and row.default not in (UNSET, None) and not row.is_section:
                self.tell("W1941", name, f"`{self.written(name)}` is null, which counts here as absent, so that it is "
                          f"{self.value(name)}", suggestion="remove it, or write a value")  # fmt: skip
            if value is None or not kind:
                continue
            rule, is_kept = KINDS[kind]
            if not is_kept(value):
                message = f"`{self.written(name)}` must be {rule}, got {described(name, value)}"
                self.tell("E1101", name, message, rule=rule)
                self._written[name] = (None, origin)

    def _note(self, row: ForeignKey, name: str, value: Any, origin: Origin | None) -> None:
        if row.fate is Fate.OLDER:
            self.tell("W1942", name, f"`{self.spelt(name, origin)}` is an older name of {row.newer}", origin=origin,
                      value=value)  # fmt: skip
            before = self._written.get(row.newer)
            if value is None:
                return
            if before is not None and before[0] not in (None, value):
                self.tell(
                    "E1943", name,
                    f"`{self.spelt(name, origin)}` is {value}, but {row.newer}, its newer name, is {before[0]}",
                    origin=origin, suggestion=f"keep `{row.newer}`",
                )  # fmt: skip
                return
            name, row = row.newer, by_name()[row.newer]
        elif name in self._written and self._written[name][0] != value:
            older = self._written[name][0]
            if value is not None:
                message = f"`{self.spelt(name, origin)}` is {value}, but its older name says {older}"
                self.tell("E1943", name, message, origin=origin, suggestion=f"keep `{name}`")
            return
        self._written[name] = (value, origin)
        why = row.why if row.fate in (Fate.HARMLESS, Fate.REFUSED) else ""
        self.became.append(Became(name, self.spelt(name, origin), row.fate, why, value))

    def apply_rows(self) -> None:
        """Do what the table says of each key that no conversion reads."""
        for name, (value, origin) in list(self._written.items()):
            row = row_of(name)
            assert row is not None, "unknown keys were left out"
            if row.fate is Fate.REFUSED and not row.is_accepted(value):
                self.refuse(name, row.why, row.instead)
            elif row.fate is Fate.HARMLESS and row.why and not row.is_accepted(value):
                self.tell("W1940", name, f"`{self.spelt(name, origin)}` changes nothing here: {row.why}", origin=origin)
            elif row.fate is Fate.HONOURED and not row.via and value is not None:
                for place in row.to:
                    self.put(place, value, name)
        for name, row in by_name().items():
            if row.to and not row.via and row.default is not UNSET and not self.is_written(name):
                for place in row.to:
                    self.put(place, self.value(name), name)

    def is_written(self, name: str) -> bool:
        """Return whether the file has a key, with a value."""
        return self._written.get(name, (None, None))[0] is not None

    def is_there(self, name: str) -> bool:
        """Return whether the file has a key, also with null."""
        return name in self._written

    def value(self, name: str) -> Any:
        """Return the value of a key: as written, else veRL's default, else None."""
        written = self._written.get(name, (None, None))[0]
        if written is not None:
            return copy.deepcopy(written)
        if name in self.defaults:
            return self.defaults[name]
        default = by_name()[name].default
        return None if default is UNSET else default

    def number(self, name: str, least: int = 0) -> int | None:
        """Return the value of a key that counts something.

        None if it is absent, or no such number, which is reported (E1101).
        """
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            rule = f"an integer of at least {least}"
            self.tell("E1101", name, f"`{self.written(name)}` must be {rule}, got {described(name, value)}", rule=rule)
            return None
        return value

    def chosen(self, name: str, *among: str) -> str | None:
        """Return the value of a key that is one of several words, else None.

        Another word is reported (E1301).
        """
        value = self.value(name)
        if value is None or value in among:
            return value
        rule = f"one of {', '.join(among)}"
        self.tell("E1301", name, f"`{self.written(name)}` must be {rule}, got {described(name, value)}", rule=rule)
        return None

    def below(self, prefix: str) -> dict[str, Any]:
        """Return the written keys below a section, by what follows its name."""
        start = f"{prefix}."
        return {name[len(start) :]: value for name, (value, _) in self._written.items() if name.startswith(start)}

    def put(self, place: str, value: Any, name: str) -> None:
        """Write a value to our key `place`, which a foreign key gives.

        A default that is ours as well is not written.
        """
        row = row_of(name)
        assert row is not None and any(_is_below(place, to) for to in row.to), f"the table lacks {name} -> {place}"
        path = parse_path(place)
        assert path is not None, f"{place} is a key"
        has_default, own = default_at(path)
        if not self.is_written(name) and name not in self.defaults and has_default and own == value:
            return
        self._set(path, value, self._origin(name))
        self.sources.setdefault(place, []).append(name)

    def _set(self, path: Path, value: Any, origin: Origin) -> None:
        node: Any = self.ours.values
        for depth, part in enumerate(path[:-1]):
            below: Any = [] if isinstance(path[depth + 1], int) else {}
            if isinstance(part, int):
                while len(node) <= part:
                    node.append({})
                node = node[part]
            else:
                node = node.setdefault(part, below)
            around = _above(origin, len(path) - depth - 1, path)
            if around is not None:
                self.ours.origins.setdefault(path[: depth + 1], (around,))
        if isinstance(path[-1], int) and len(node) == path[-1]:
            node.append(value)
        else:
            node[path[-1]] = value
        self.ours.origins[path] = (origin,)

    def _origin(self, name: str) -> Origin:
        _, origin = self._written.get(name, (None, None))
        if origin is None:
            return Origin(FOREIGN, "default of veRL", written=parse_path(name) or (name,))
        return Origin(FOREIGN, origin.file, origin.line, origin.column, origin.written, origin.text)

    def spelt(self, name: str, origin: Origin | None) -> str:
        """Return a key as the file has it."""
        return dotted(origin.written) if origin is not None and origin.written else name

    def written(self, name: str) -> str:
        """Return a key as the file has it, or as the table has it."""
        return self.spelt(name, self._written.get(name, (None, None))[1])

    def refuse(self, name: str, why: str, instead: str) -> None:
        """Refuse the value of a key (E1940)."""
        value = self.value(name)
        shown = f": {described(name, value)}" if not isinstance(value, dict) else ""
        self.tell("E1940", name, f"`{self.written(name)}` is refused{shown}: {why}", suggestion=instead)

    def tell_unused(self, name: str, why: str) -> None:
        """Say that a key changes nothing here (W1940).

        Only if the file has it, with another value than its default.
        """
        if self.is_written(name) and self.value(name) != by_name()[name].default:
            self.tell("W1940", name, f"`{self.written(name)}` changes nothing here: {why}")

    def tell(self, code: str, name: str, message: str, *, origin: Origin | None = None, **details: Any) -> None:
        """Note a problem at the place of a key."""
        origin = origin or self._written.get(name, (None, None))[1]
        details.setdefault("value", self._written.get(name, (None, None))[0])
        key = self.spelt(name, origin)
        is_in_file = origin is not None and origin.line is not None  # an override was chosen
        is_shipped = code in _OF_FILES and is_in_file and self._is_shipped(name, details["value"])
        problems = self.shipped if is_shipped else self.problems
        if origin is None:
            problems.append(Finding(code, key, message, **details))
            return
        place: dict[str, Any] = {
            "file": origin.file,
            "line": origin.line,
            "column": origin.column,
            "source_line": origin.text,
        }
        problems.append(Finding(code, key, message, **place, **details))

    def _is_shipped(self, name: str, value: Any) -> bool:
        row = by_name().get(name, _NO_ROW)
        newer = row.newer or name
        default = SHIPPED.get(name, SHIPPED.get(newer, by_name().get(newer, _NO_ROW).default))
        return name in self.referring or is_as_shipped(value, default)

    def tell_shipped(self) -> None:
        """Tell together what nobody chose (W1943)."""
        if not self.shipped:
            return
        first, count = self.shipped[0], len(self.shipped)
        names = ", ".join(each.key for each in self.shipped[:3])
        message = f"{count} values, such as {names}, are veRL's own, and change nothing here or have an older name"
        way_out = f"`trinity convert config {first.file}` lists them"
        self.problems.append(Finding("W1943", first.key, message, file=first.file, suggestion=way_out))


def _is_below(place: str, to: str) -> bool:
    return place == to or place.startswith((f"{to}.", f"{to}["))


def _above(origin: Origin, levels: int, path: Path) -> Origin | None:
    """Return the origin of a section around a value.

    It is the section of the same name in the file; None where the value has another place there.
    """
    written = origin.written[:-levels] if levels < len(origin.written) else ()
    is_same = bool(written) and written[-1] == path[-levels - 1]
    if not is_same:
        return None
    return Origin(FOREIGN, origin.file, origin.line, origin.column, written, origin.text)


def _keys(values: Mapping[str, Any], path: Path) -> Iterator[Path]:
    """Yield the keys that have a row of their own, and the leaves."""
    for name, value in values.items():
        here = (*path, name)
        row = row_of(dotted(here))
        is_whole = row is not None and row.name == dotted(here) and (row.is_section or not isinstance(value, dict))
        if is_whole or not isinstance(value, dict):
            yield here
        else:
            yield from _keys(value, here)
