"""The fields of the studio's forms, made from the schema.

Name, kind, limits, choices, default and help of a field are those that its key declares; nothing of a key stands here.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic.fields import FieldInfo

from trinity.common.config.base import is_derived
from trinity.common.config.config import Config
from trinity.common.config.help_texts import field_source, help_of
from trinity.common.config.schema_index import facts_at, field_at, fields_of, holds_section, model_at, variants
from trinity.common.config.tree import Path, dotted
from trinity.utils.kinds import ROLES
from trinity.utils.log import is_secret_name

Kind = Literal["choice", "integer", "number", "text", "yaml"]

PARTS: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "cluster"),
    "buffer": ("buffer", "data_processor"),
    "explorer": ("explorer", "synchronizer", "service"),
    "trainer": ("trainer", "algorithm", "monitor", "log"),
}
"""Sections of each part of the expert mode; any other key is in that of the model."""

REGISTRIES: Mapping[str, str] = {
    "algorithm_type": "algorithm_type",
    **ROLES,
    "default_workflow_type": "workflow",
    "default_eval_workflow_type": "workflow",
    "default_reward_fn_type": "reward_fn",
    "selector_type": "selector",
    "priority_fn": "priority_fn",
    "monitor_type": "monitor",
}
"""Keys whose values are names of a registry, by their last part."""

LARGEST = 2**53 - 1
"""Whole numbers beyond it are changed by a browser."""

_RECORDED = ("written",)  # a key that a run writes


@dataclass(frozen=True)
class FormField:
    """A key of the configuration as a field of a form.

    Attributes:
        name: of the field, by which `get_configs` shows it: the last part of the key, or all of it where a key
            nearer to the top has this name.
        path: of the key.
        kind: what it takes; `yaml`: a list or a mapping, as text.
        choices: the values that it can have, or names among which others may be written.
        is_open: other values than the choices may be written.
        least: smallest number; None: there is none, or it is itself not allowed.
        most: largest number.
        default: the value of an absent key.
        is_secret: the value is never shown.
    """

    name: str
    path: Path
    kind: Kind
    choices: tuple[Any, ...] = ()
    is_open: bool = False
    least: float | None = None
    most: float | None = None
    default: Any = None
    is_secret: bool = False

    @property
    def key(self) -> str:
        """The key with dots."""
        return dotted(self.path)

    def help(self, language: str = "en") -> str:
        """Return what the key means, and where its default comes from."""
        field = field_at(self.path)
        text, source = help_of(self.path, language), "" if field is None else field_source(field, language)
        return text if not source else f"{text}（{source}）" if language == "zh" else f"{text} ({source})"

    @property
    def part(self) -> str:
        """The part of the expert mode that shows it."""
        return part_of(self.path)

    def holds(self, value: Any) -> bool:
        """Return whether a widget of this kind can show a written value."""
        if value is None:
            return self.kind != "yaml"
        if self.kind == "choice":
            return value in self.choices or (self.is_open and isinstance(value, str))
        if self.kind in ("integer", "number"):
            kinds = (int,) if self.kind == "integer" else (int, float)
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            limits = (-LARGEST if self.least is None else self.least, LARGEST if self.most is None else self.most)
            return is_number and limits[0] <= value <= limits[1]
        return isinstance(value, str) if self.kind == "text" else False


def part_of(path: Path) -> str:
    """Return the part of the expert mode in which a key is."""
    return next((part for part, sections in PARTS.items() if path[0] in sections), "model")


def form_fields() -> tuple[FormField, ...]:
    """Return a field for every key that a user may give a value.

    Left out are sections, computed values, older names, and keys that have one value only. An item of a list of
    sections has none of its own: the list is one field.
    """
    named, found = set[str](), []
    for path, field in sorted(_keys(), key=lambda each: (len(each[0]), each[0])):
        name = str(path[-1]) if path[-1] not in named else dotted(path)
        named.add(name)
        found.append(_form_field(name, path, field))
    places = {path: number for number, (path, _) in enumerate(fields_of(Config))}
    return tuple(sorted(found, key=lambda each: places[each.path]))


def computed_keys() -> dict[str, Path]:
    """Return the keys whose values are computed, by their last part.

    Those with the name of a field are left out.
    """
    found: dict[str, Path] = {}
    for path, field in fields_of(Config):
        if is_derived(field) and not {"*", "stages"} & set(path) and path[-1] not in fields_by_name():
            found.setdefault(str(path[-1]), path)
    return found


def _keys() -> Iterator[tuple[Path, FieldInfo]]:
    for path, field in fields_of(Config):
        if "*" in path or path[-1] in _RECORDED or model_at(path) is not None:
            continue
        facts = facts_at(path)[1]
        if is_derived(field) or facts.renamed is not None:
            continue
        if facts.support is None or any(value != field.get_default() for value in facts.support.only):
            yield path, field


def _form_field(name: str, path: Path, field: FieldInfo) -> FormField:
    kind, choices, is_open = _kind(path, field)
    least, most = _limits(field, is_whole=kind == "integer")
    return FormField(
        name=name,
        path=path,
        kind=kind,
        choices=choices,
        is_open=is_open,
        least=least,
        most=most,
        default=field.get_default(),
        is_secret=is_secret_name(str(path[-1])),
    )


def _kind(path: Path, field: FieldInfo) -> tuple[Kind, tuple[Any, ...], bool]:
    """Return the kind of a field, its choices, and whether it takes others."""
    kinds = variants(field.annotation)
    support = facts_at(path)[1].support
    literals = [value for kind in kinds if typing.get_origin(kind) is Literal for value in typing.get_args(kind)]
    if bool in kinds:
        literals += [True, False]
    if literals and len(kinds) == 1:
        return "choice", tuple(value for value in literals if _is_served(value, support, field)), False
    if support is not None:
        only = [value for value in (field.get_default(), *support.only) if value is not None]
        return ("choice", tuple(dict.fromkeys(only)), False) if _are_plain(only) else ("yaml", (), False)
    if path[-1] in REGISTRIES and str in kinds:
        return "choice", (), True
    if any(typing.get_origin(kind) in (tuple, dict) for kind in kinds) and str not in kinds or holds_section(path):
        return "yaml", (), False
    names: dict[Any, Kind] = {int: "integer", float: "number"}
    numbers = [names[kind] for kind in kinds if kind in names]
    return ("number" if "number" in numbers else numbers[0] if numbers else "text"), (), False


def _are_plain(values: list[Any]) -> bool:
    return all(isinstance(value, str | int | float) for value in values)


def _is_served(value: Any, support: Any, field: FieldInfo) -> bool:
    return support is None or value == field.get_default() or value in support.only


def _limits(field: FieldInfo, *, is_whole: bool) -> tuple[float | None, float | None]:
    """Return the smallest and the largest number that a key takes."""
    least: float | None = None
    most: float | None = None
    for rule in [*field.metadata, *_rules(field.annotation)]:
        for sign in ("ge", "gt"):
            limit = getattr(rule, sign, None)
            if limit is not None and (sign == "ge" or is_whole):
                least = limit + (sign == "gt")
        for sign in ("le", "lt"):
            limit = getattr(rule, sign, None)
            if limit is not None and (sign == "le" or is_whole):
                most = limit - (sign == "lt")
    return least, most


def _rules(annotation: Any) -> Iterator[Any]:
    """Yield what an annotation of a plain value says of its limits."""
    if typing.get_origin(annotation) in (tuple, dict, Literal):
        return
    for part in typing.get_args(annotation):
        if isinstance(part, FieldInfo):
            yield from part.metadata
        elif not isinstance(part, type):
            yield part
            yield from _rules(part)


@functools.cache
def fields_by_name() -> dict[str, FormField]:
    """Return all fields by their names, in the order of the schema."""
    return {field.name: field for field in form_fields()}


@functools.cache
def fields_by_key() -> dict[str, FormField]:
    """Return all fields by their dotted keys."""
    return {field.key: field for field in form_fields()}


def field_of_finding(key: str, shown: Mapping[str, Any]) -> str | None:
    """Return which of the shown keys a problem of `key` belongs to.

    It is the key itself, or the nearest around it.
    """
    while key:
        if key in shown:
            return key
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return None


def section_title(path: Path, language: str = "en") -> str:
    """Return the help text of the section at a path; empty: it has none."""
    return help_of(path, language)
