"""The functions of an algorithm with defaults and formulas, without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trinity.catalogue import BUILT_IN
from trinity.common.config import Catalogue
from trinity.utils.formula import in_numbers, in_symbols
from trinity.utils.kinds import ROLES
from trinity.utils.registry import Entry

# The functions that the loss is made of; a sample strategy chooses the rows.
IN_LOSS = tuple(role for role in ROLES if role != "sample_strategy")
# A paper, its version where the numbers depend on it, and the place in it.
_SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}(?:v\d+)?(?:, (?:eq\. \d+(?:(?:, | and )\d+)*|section \d+(?:\.\d+)*))*")


@dataclass(frozen=True)
class AlgorithmFunction:
    """A function of an algorithm.

    Attributes:
        role: key under `algorithm`, such as `kl_loss_fn`.
        name: its name; `none` where the algorithm has no such function.
        entry: the declarations of its class; None for a plugin without any and for the advantage `none`.
        args: all arguments, defaults merged.
        is_built_in: it is no plugin's, so that `entry` is the whole truth.
    """

    role: str
    name: str
    entry: Entry | None
    args: Mapping[str, Any] = field(default_factory=dict)
    is_built_in: bool = True

    @property
    def is_none(self) -> bool:
        """Whether the algorithm has no such function."""
        return self.name == "none"

    @property
    def symbols(self) -> list[str]:
        """The lines of the formula with names of arguments."""
        return in_symbols(self.entry.formula) if self.entry is not None else []

    @property
    def numbers(self) -> list[str]:
        """The lines of the formula with the values of `args`."""
        return in_numbers(self.entry.formula, self.args) if self.entry is not None else []

    @property
    def needs(self) -> frozenset[str]:
        """The tensors that it reads."""
        return self.entry.reads if self.entry is not None else frozenset()

    @property
    def is_verl(self) -> bool:
        """Whether a policy loss aggregates by veRL's convention."""
        return self.entry is not None and self.entry.convention == "verl"

    @property
    def sources(self) -> list[str]:
        """The works that it is taken from."""
        return [] if self.entry is None or self.is_none else sources(self.entry)


def function_of(
    algorithm: str,
    role: str,
    chosen: str | None = None,
    written: Mapping[str, Any] | None = None,
    *,
    catalogue: Catalogue = BUILT_IN,
) -> AlgorithmFunction:
    """Return a function of an algorithm type with its arguments.

    It is the `chosen` function or that of the type. The `written` arguments override the defaults.
    """
    of_type = catalogue.entry("algorithm_type", algorithm)
    known = of_type.args if of_type is not None else {}
    name = chosen if chosen is not None else known.get(role) or "none"
    entry = catalogue.entry(ROLES[role], name)
    args = dict(entry.args) if entry is not None else {}
    if known.get(role) == name:
        args |= known.get(f"{role}_args") or {}
    is_built_in = catalogue.is_built_in(ROLES[role], name)
    return AlgorithmFunction(role, name, entry, args | dict(written or {}), is_built_in)


def functions_of(algorithm: str) -> dict[str, AlgorithmFunction]:
    """Return all functions of an algorithm type with their defaults, by role."""
    return {role: function_of(algorithm, role) for role in ROLES}


def sources(entry: Entry) -> list[str]:
    """Return the works that an entry names."""
    found = re.findall(_SOURCE, entry.doc)
    return [*found, *([entry.source] if entry.source else [])]
