"""The columns and sampling arguments of a task, as plain dataclasses.

They have the fields of the sections `format` and `rollout_args` of a taskset. Those are frozen; a workflow may change
the options of its task.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import field, make_dataclass
from typing import Any

from trinity.common.config.base import Section
from trinity.common.config.buffer import FormatConfig, GenerationConfig


def _plain(name: str, section: type[Section], doc: str) -> type[Any]:
    """Return a mutable dataclass with the fields and defaults of a section."""
    fields = [(key, Any, field(default=each.get_default())) for key, each in section.model_fields.items()]
    made = make_dataclass(name, fields)
    made.__doc__, made.__module__ = doc, __name__
    return made


FormatArgs = _plain("FormatArgs", FormatConfig, "Names of the columns of a task's row, and what is put around them.")
SamplingArgs = _plain("SamplingArgs", GenerationConfig, "Sampling arguments; None: as section `model` says.")


def plain(options: Any, form: type[Any]) -> Any:
    """Return options of a task that can be changed.

    A section becomes a `form`, None one with its defaults; mappings and other objects stay as they are.
    """
    if options is None:
        return form()
    if isinstance(options, Section):
        return form(**vars(options))  # far quicker than dict(options), for one of each row
    return copy(options) if isinstance(options, Mapping) else options
