"""One row of a dialect's table: a key, and what happens to it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

UNSET: Any = Enum("Unset", "UNSET").UNSET  # type: ignore[attr-defined]
"""Stands for a default that nothing follows from."""

VERL_TREE = "trainer.trainer_config"
SAME = "="
"""A place in ours that has the same name, below `trainer.trainer_config`."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return not isinstance(value, list | dict)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "integer": ("an integer", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "number": ("a number", _is_number),
    "text": ("text", _is_text),
    "texts": (
        "text or a list of texts",
        lambda value: all(map(_is_text, value)) if isinstance(value, list) else _is_text(value),
    ),
    "mapping": ("a mapping", lambda value: isinstance(value, dict)),
}
"""Kinds of values that conversions read: the rule in words, and whether a value keeps it."""
_OF_DEFAULTS = {bool: "flag", int: "integer", float: "number", str: "text"}


class Fate(Enum):
    """What happens to a key."""

    HONOURED = "honoured"
    HARMLESS = "harmless"
    REFUSED = "refused"
    OLDER = "older name"


@dataclass(frozen=True)
class ForeignKey:
    """A key of another tool, and what happens to it here.

    Attributes:
        name: its dotted name.
        to: our keys that it decides; empty: none.
        via: the conversion that reads it; empty: its value is put to each of `to` as it is.
        default: the value of an absent key, if something follows from it here.
        accepts: the values that mean what happens here anyway; of a refused key all others are refused, of a harmless
            one all others are reported.
        why: why it is refused, or changes nothing.
        instead: what to write in place of what is refused.
        newer: the key of which this is an older name.
        note: units, or what else is converted, for the page.
        is_section: the row is for all keys below `name` together.
        needs_switch: of a section: it asks for nothing unless `enable` is true, whatever else it has.
        keys: of a section: the keys in it; empty: any.
        is_open: of a section: it may have other keys than those, if they do not look like a typing error in one.
        kind: the kind of its values, one of `KINDS`, where its default does not say it.
    """

    name: str
    to: tuple[str, ...] = ()
    via: str = ""
    default: Any = UNSET
    accepts: tuple[Any, ...] = ()
    why: str = ""
    instead: str = ""
    newer: str = ""
    note: str = ""
    is_section: bool = False
    needs_switch: bool = False
    keys: tuple[str, ...] = ()
    is_open: bool = False
    kind: str = ""

    @property
    def kind_read(self) -> str:
        """The kind of value that its conversion reads.

        Empty: the schema says it, or the key is not read.
        """
        if self.kind or not self.via:
            return self.kind
        return "mapping" if self.is_section else _OF_DEFAULTS.get(type(self.default), "")

    @property
    def fate(self) -> Fate:
        """What happens to the key, apart from values that the schema refuses."""
        if self.newer:
            return Fate.OLDER
        if self.to:
            return Fate.HONOURED
        return Fate.REFUSED if self.instead else Fate.HARMLESS

    def is_accepted(self, value: Any) -> bool:
        """Return whether a value means what happens here anyway."""
        if self.is_section:
            return is_off(value) or (self.needs_switch and isinstance(value, dict) and not value.get("enable"))
        return value is None or value == "" or any(value is each or value == each for each in self.accepts)


def is_off(value: Any) -> bool:
    """Return whether a section asks for nothing.

    It is switched off, or no value in it is set.
    """
    if not isinstance(value, dict):
        return value in (None, False, "", 0) or value == []
    switch = value.get("enable", value.get("enabled"))
    if switch is not None:
        return switch is False
    return all(is_off(inner) for name, inner in value.items() if name != "_target_")


def honoured(name: str, *to: str, via: str = "", default: Any = UNSET, note: str = "", kind: str = "") -> ForeignKey:
    """Return a key that has a place here; without `to`, the same place."""
    places = tuple(f"{VERL_TREE}.{name}" if place == SAME else place for place in to or (SAME,))
    return ForeignKey(name, places, via=via, default=default, note=note, kind=kind)


def section(
    name: str, *to: str, via: str = "", note: str = "", keys: tuple[str, ...] = (), is_open: bool = False
) -> ForeignKey:
    """Return a section that has a place here as a whole."""
    places = tuple(f"{VERL_TREE}.{name}" if place == SAME else place for place in to or (SAME,))
    return ForeignKey(name, places, via=via, note=note, is_section=True, keys=keys, is_open=is_open)


def harmless(name: str, why: str, *accepts: Any, is_section: bool = False) -> ForeignKey:
    """Return a key that changes nothing here; `accepts` are not even told."""
    return ForeignKey(name, accepts=accepts, why=why, is_section=is_section)


def refused(
    name: str, why: str, instead: str, *accepts: Any, is_section: bool = False, switched: tuple[str, ...] = ()
) -> ForeignKey:
    """Return a key of which all values but `accepts` are refused.

    `switched` are the keys of a section that asks for nothing unless its `enable` is true.
    """
    return ForeignKey(
        name, accepts=accepts, why=why, instead=instead, is_section=is_section or bool(switched),
        needs_switch=bool(switched), keys=switched,
    )  # fmt: skip


def older(name: str, newer: str, *, is_section: bool = False) -> ForeignKey:
    """Return an older name of a key."""
    return ForeignKey(name, newer=newer, is_section=is_section)
