"""What every section of the configuration shares: strictness, number types and documented fields.

A field is documented where it is declared: meaning, unit, range, and the place that its default comes from.
"""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

GUIDE = "configuration guide"
TRINITY = "Trinity-RFT 0.6"
VERL = "veRL"
OWN = "this project"

S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A mapping of the YAML file: unknown keys are errors, values do not change after validation."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        protected_namespaces=(),
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_none(cls, data: Any) -> Any:
        """Read the bare word `None` as null where a field may be null, and an empty section as its defaults."""
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
    """Return whether a list or mapping was left empty in the file (`eval_tasksets:`)."""
    field = model.model_fields.get(name)
    return value is None and field is not None and typing.get_origin(field.annotation) in (tuple, dict)


def is_optional(annotation: Any) -> bool:
    """Return whether a type annotation admits `None`."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return is_optional(typing.get_args(annotation)[0])
    return origin in (typing.Union, types.UnionType) and type(None) in typing.get_args(annotation)


def _not_bool(value: Any) -> Any:
    """Refuse a boolean where a number is expected; Python would count it as 0 or 1."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got the boolean {str(value).lower()}")
    return value


Int = Annotated[int, BeforeValidator(_not_bool)]
Float = Annotated[float, BeforeValidator(_not_bool)]
Count = Annotated[Int, Field(ge=1)]
Natural = Annotated[Int, Field(ge=0)]
Positive = Annotated[Float, Field(gt=0)]
NonNegative = Annotated[Float, Field(ge=0)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
Port = Annotated[Int, Field(ge=0, le=65535)]
Args = dict[str, Any]


def key(default: Any, description: str, source: str, *, secret: bool = False, derived: bool = False) -> Any:
    """Return a documented field.

    Args:
        default: the value of an absent key; lists and dicts are copied.
        description: meaning, unit and range.
        source: where the default comes from.
        secret: the value is never shown.
        derived: the value is computed; a user normally leaves it out.
    """
    extra: dict[str, Any] = {"source": source}
    if secret:
        extra["secret"] = True
    if derived:
        extra["derived"] = True
    return Field(default=default, description=description, json_schema_extra=extra)


def section(model: type[S], description: str, source: str = GUIDE) -> Any:
    """Return a field that holds a section with all its defaults."""
    return Field(default_factory=model, description=description, json_schema_extra={"source": source})
