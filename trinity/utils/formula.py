"""The language of the formulas in the tables of contents.

The first line is the formula, each further one a definition or a condition. `{name}` stands for an argument of the
class, `{a|b|0.5}` for the first of several that is set, at last a number. A line that begins with `?name` holds
where the argument is set and not false, with `?name=value` where it has that value, with `?name!=value` where not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PLAIN = {"None": "null", "False": "false", "True": "true"}
_ARGUMENT = re.compile(r"\{([^{}]+)\}")
_CONDITION = re.compile(r"\?(\w+)(?:(!?=)(\S+))? (.+)")


def number(value: Any) -> str:
    """Return a value as a formula writes it: 1e-06 as 1e-6, 1.0 as 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return re.sub(r"e([+-])0+", lambda found: "e-" if found[1] == "-" else "e", f"{value:.12g}")


def in_symbols(formula: str) -> list[str]:
    """Return the lines with the names of the arguments.

    Conditions, and the replacements of null, are written out.
    """
    lines: list[str] = []
    stand_ins: dict[str, str] = {}
    for line in formula.splitlines():
        found = _CONDITION.fullmatch(line)
        if found is not None:
            name, sign, wanted, text = found.groups()
            line = f"with {name}{f' {sign} {_PLAIN.get(wanted, wanted)}' if sign else ''}: {text}"
        for names in (text.split("|") for text in _ARGUMENT.findall(line) if "|" in text):
            stand_ins[names[0]] = f"{names[0]}, where it is null: {', else '.join(names[1:])}"
        lines.append(_ARGUMENT.sub(lambda match: match[1].split("|")[0], line))
    return [*lines, *stand_ins.values()]


def in_numbers(formula: str, args: Mapping[str, Any]) -> list[str]:
    """Return the lines that hold for `args`, with values for the names.

    Raises:
        KeyError: the formula names an argument that `args` does not have.
    """
    lines = []
    for line in formula.splitlines():
        found = _CONDITION.fullmatch(line)
        if found is not None:
            name, sign, wanted, line = found.groups()
            if not _holds(args[name], sign, wanted):
                continue
        lines.append(_ARGUMENT.sub(lambda match: number(_first(match[1], args)), line))
    return lines


def arguments(formula: str) -> set[str]:
    """Return the names of the arguments that a formula reads."""
    names = {part for text in _ARGUMENT.findall(formula) for part in text.split("|")}
    conditions = (_CONDITION.fullmatch(line) for line in formula.splitlines())
    return {name for name in names if name.isidentifier()} | {found[1] for found in conditions if found}


def _first(text: str, args: Mapping[str, Any]) -> Any:
    for part in text.split("|"):
        value = args[part] if part.isidentifier() else part
        if value is not None:
            return value
    return None


def _holds(value: Any, sign: str | None, wanted: str | None) -> bool:
    if sign is None:
        return value is not None and value is not False
    return (number(value) == wanted) == (sign == "=")
