"""Base of all sections: strictness, data types, documented fields.

A field is documented where it is declared: meaning, unit, range and the source of its default.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import CoreSchema, no_info_before_validator_function

from trinity.common.errors import ConfigError

GUIDE = "configuration guide"
TRINITY = "Trinity-RFT 0.6"
VERL = "veRL"
OWN = "this project"

S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A mapping of the YAML file; unknown keys are errors, values are frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        protected_namespaces=(),
        defer_build=True,
    )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            raise ConfigError(
                f"`{name}` cannot be set: a configuration is frozen, so that what was checked runs; give values "
                'as overrides, trinity.load_config(path, {"a.b": value}) or trinity.run(config, {"a.b": value})',
                code="E1013",
            )
        super().__setattr__(name, value)

    @model_validator(mode="before")
    @classmethod
    def _bare_none(cls, data: Any) -> Any:
        """Read `None` as null where allowed, and an empty section as defaults."""
        if data is None:
            return {}
        if not isinstance(data, dict):
            return data
        return {name: _null(cls, name, value) for name, value in data.items() if not _is_blank(cls, name, value)}


def _null(model: type[Section], name: str, value: Any) -> Any:
    if not isinstance(value, str) or value != "None":
        return value
    field = model.model_fields.get(name)
    return None if field is not None and is_optional(field.annotation) else value


def _is_blank(model: type[Section], name: str, value: Any) -> bool:
    """Return whether a list or mapping is empty (`eval_tasksets:`)."""
    field = model.model_fields.get(name)
    return value is None and field is not None and typing.get_origin(field.annotation) in (tuple, dict)


def is_optional(annotation: Any) -> bool:
    """Return whether a type annotation admits `None`."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return is_optional(typing.get_args(annotation)[0])
    return origin in (typing.Union, types.UnionType) and type(None) in typing.get_args(annotation)


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got the boolean {str(value).lower()}")
    return value


class _NotBool:
    """Refuses a boolean as a number; Python would count it as 0 or 1.

    As `BeforeValidator(_not_bool)`, of which pydantic would look at the signature for each of 475 keys.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(_not_bool, handler(source))


Int = Annotated[int, _NotBool()]
Float = Annotated[float, _NotBool()]
Count = Annotated[Int, Field(ge=1)]
Natural = Annotated[Int, Field(ge=0)]
Positive = Annotated[Float, Field(gt=0)]
NonNegative = Annotated[Float, Field(ge=0)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
Port = Annotated[Int, Field(ge=0, le=65535)]
Args = dict[str, Any]


@dataclass(frozen=True)
class Support:
    """The refused values of a key: all but its default and `only`.

    Without `Support`, a key takes every value.

    Attributes:
        only: the other values that are served.
        why: the permanent reason; empty: other values come in a later version.
        instead: what to write; null: one of `only`, or nothing.
        code: of the problem.
    """

    only: tuple[Any, ...] = ()
    why: str = ""
    instead: str | None = None
    code: str = "E1900"


@dataclass(frozen=True)
class Idle:
    """A value that is accepted and changes nothing, and why.

    Attributes:
        value: that value.
        why: said after it.
        is_any: every value but null changes nothing.
        but: with `is_any`, the values that are not even told.
    """

    value: Any
    why: str
    is_any: bool = False
    but: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        """Return whether a written value changes nothing."""
        return value not in (None, *self.but) if self.is_any else value is self.value


@dataclass(frozen=True)
class IdleWith:
    """Values of another key with which this one has no effect.

    Attributes:
        key: that key: its name in the same section, or its dotted path, which begins with the dot at the top level.
        values: those values; empty: all that are not in `but`.
        but: the values with which this one has an effect.
        why: said after it.
        instead: what to write.
        code: of the warning.
    """

    key: str
    values: tuple[Any, ...] = ()
    but: tuple[Any, ...] = ()
    why: str = ""
    instead: str = "remove it"
    code: str = "W1902"

    def holds(self, value: Any) -> bool:
        """Return whether this key has no effect with a value of that one.

        A list, as a key holds it while it is resolved, is the tuple of its items.
        """
        value = tuple(value) if isinstance(value, list) else value
        return value in self.values if self.values else value not in self.but


@dataclass(frozen=True)
class Renamed:
    """The name that counts of a key with two.

    Attributes:
        new: that key: its name in the same section, or its dotted path.
        since: the version that introduced it (W1301); empty: both names are in use.
        both: which one wins if both are written; clash: they must not differ (E1815).
        said: what this name is in relation to that one.
    """

    new: str
    since: str = ""
    both: Literal["newer", "older", "clash"] = "newer"
    said: Literal["older", "other", "veRL"] = "older"

    def deprecation(self, name: object) -> dict[str, str]:
        """Return message and suggestion of the warning about this name (W1301)."""
        return {"message": f"`{name}` is deprecated since {self.since}", "suggestion": f"write `{self.new}`"}


@dataclass(frozen=True)
class Facts:
    """Properties of a key beside type, default and meaning; all optional.

    Attributes:
        support: which values are refused; null: none.
        idle: a value that changes nothing.
        idle_with: values of other keys with which no value of it changes anything.
        mirrors: the key that is another name of this one: what is written under one name holds under both.
        default_from: the key that provides the value if this one is absent.
        unless: this key is true if that value differs from this one; null: it has the same value.
        set_from: the key that is written in place of this one, which may only repeat it.
        fallback: the value of this key if it is absent and follows from nothing else; null: none.
        renamed: the name that counts, if this one is older or another's.
        verl_names: veRL's names of this key, or of the one that it is set from, where no key is so called.
        entries: what the entries of a free mapping may be; others are refused.
        is_engine_arg: it is the argument of vLLM that has the same name.
        at: facts of keys below a section that hold at this place of it only, by their path from here.
    """

    support: Support | None = None
    idle: Idle | None = None
    idle_with: tuple[IdleWith, ...] = ()
    mirrors: str | None = None
    default_from: str | None = None
    unless: str | None = None
    set_from: str | None = None
    fallback: Any = None
    renamed: Renamed | None = None
    verl_names: tuple[str, ...] = ()
    entries: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    is_engine_arg: bool = False
    at: Mapping[str, Facts] = dataclasses.field(default_factory=dict)

    def value_from(self, other: Any) -> Any:
        """Return this key's value, given the value of the key that it follows."""
        return other if self.unless is None else other != self.unless


LATER = Support()
NO_FACTS = Facts()


def only(*values: Any, instead: str | None = None) -> Support:
    """Return that only the default and `values` are served so far."""
    return Support(values, instead=instead)


def refused(*values: Any, why: str, instead: str, code: str = "E1886") -> Support:
    """Return that all but the default and `values` is refused permanently."""
    return Support(values, why, instead, code)


def key(
    default: Any,
    description: str,
    source: str,
    *,
    secret: bool = False,
    derived: bool = False,
    support: Support | None = None,
    idle: Idle | None = None,
    idle_with: tuple[IdleWith, ...] = (),
    mirrors: str | None = None,
    default_from: str | None = None,
    unless: str | None = None,
    set_from: str | None = None,
    fallback: Any = None,
    renamed: Renamed | None = None,
    verl_names: tuple[str, ...] = (),
    entries: Mapping[str, tuple[Any, ...]] | None = None,
    is_engine_arg: bool = False,
    at: Mapping[str, Facts] | None = None,
) -> Any:
    """Return a documented field; `Facts` describes arguments after `derived`.

    The key that provides its value, and a fallback, are added to the description.

    Args:
        default: the value of an absent key; lists and dicts are copied.
        description: meaning, unit and range. Empty: it means what the key that it follows means.
        source: where the default comes from.
        secret: the value is never shown.
        derived: the value is computed; a user normally leaves it out. So it is with `set_from`.
    """
    extra: dict[str, Any] = {"source": source}
    if secret:
        extra["secret"] = True
    if derived or set_from is not None:
        extra["derived"] = True
    facts = Facts(
        support=support,
        idle=idle,
        idle_with=idle_with,
        mirrors=mirrors,
        default_from=default_from,
        unless=unless,
        set_from=set_from,
        fallback=fallback,
        renamed=renamed,
        verl_names=verl_names,
        entries=entries or {},
        is_engine_arg=is_engine_arg,
        at=at or {},
    )
    if facts != NO_FACTS:
        extra["facts"] = facts
    described = _described(description, facts, default)
    if described != description:
        extra["text"] = description
    return Field(default=default, description=described, json_schema_extra=extra)


def _described(text: str, facts: Facts, default: Any) -> str:
    """Return the help text of a key, with the key that its value comes from."""
    other = facts.mirrors or facts.default_from
    if facts.renamed is not None:
        return text or f"{facts.renamed.said.capitalize()} name of {facts.renamed.new}."
    if facts.set_from is not None:
        return f"{text.removesuffix('.')}; set from {facts.set_from}." if text else f"Set from {facts.set_from}."
    if facts.fallback is not None:
        shown = {False: "no", True: "yes"}[facts.fallback] if isinstance(facts.fallback, bool) else facts.fallback
        joint = ", else" if "null:" in text else "; null:" if default is None else "; empty:"
        return f"{text.removesuffix('.')}{joint} {shown}."
    if other is None:
        return text
    return f"{text.removesuffix('.')}; null: {other}." if text else f"As {other}; null inherits."


def section(
    model: type[S],
    description: str,
    source: str = GUIDE,
    *,
    support: Support | None = None,
    verl_names: tuple[str, ...] = (),
    at: Mapping[str, Facts] | None = None,
) -> Any:
    """Return a field that holds a section with all its defaults; see `Facts`."""
    facts = Facts(support, verl_names=verl_names, at=at or {})
    extra: dict[str, Any] = {"source": source} | ({"facts": facts} if facts != NO_FACTS else {})
    return Field(default_factory=model, description=description, json_schema_extra=extra)


def facts_of(field: FieldInfo) -> Facts:
    """Return the facts declared at a field."""
    extra = field.json_schema_extra
    facts = extra.get("facts") if isinstance(extra, dict) else None
    return facts if isinstance(facts, Facts) else NO_FACTS


def later(*names: str) -> dict[str, Facts]:
    """Return facts for `at`: keys below a section come in a later version."""
    return {name: Facts(LATER) for name in names}


def is_derived(field: FieldInfo) -> bool:
    """Return whether the value of a field is computed, so usually not written."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("derived") is True
