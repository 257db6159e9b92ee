"""What numbers and words a function of an algorithm takes: the ranges that its class declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Ranges = Mapping[str, str | tuple[str, ...]]
_CLIPS = ("clip_range", "clip_ratio")
_ADAPTIVE = ("target_kl", "horizon")
# Arguments that may be null although their default is a number or a word, besides the two sides of a clip range.
_MAY_BE_NULL = (*_CLIPS, "drop")


def range_faults(
    ranges: Ranges, known: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield argument, rule and way out of each argument of a function that its class would refuse.

    Args:
        ranges: what the class declares.
        known: its arguments with their defaults.
        arguments: all arguments, the defaults among them; of the kinds of their defaults.
    """
    for name, default in known.items():
        value, rule = arguments[name], ranges.get(name)
        way_out = f"the default is {default}" if default is not None else "remove it"
        is_unused = name in _CLIPS and None not in _sides(arguments, name)
        if value is None:
            is_needed = isinstance(default, int | float | str) and not isinstance(default, bool)
            is_side = name.removesuffix("_low").removesuffix("_high") in known.keys() & _CLIPS
            if is_needed and not is_side and name not in _MAY_BE_NULL and not name.endswith("agg_mode"):
                yield name, _said(rule) if rule else "a number" if not isinstance(default, str) else "a text", way_out
        elif rule is not None and not is_unused and not _is_in(value, rule):
            yield name, _said(rule), way_out
    yield from _missing(known, arguments)


def _missing(known: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what must be given together with what is."""
    for name in _CLIPS:
        if known.get(name) is not None and arguments[name] is None and None in _sides(arguments, name):
            yield name, f"a number, unless {name}_low and {name}_high are given", f"the default is {known[name]}"
    if "dro_beta" in known and arguments["dro_beta"] is None:
        yield "dro_beta", "a number > 0", "write `dro_beta: 1.0`"
    if known.keys() >= {"adaptive", *_ADAPTIVE} and arguments.get("adaptive") is True:
        for name in _ADAPTIVE:
            if not _is_in(arguments.get(name) or 0, "(0, inf]"):
                yield name, "a number > 0 with adaptive: true", f"write `{name}`, or `adaptive: false`"


def _sides(arguments: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Return the two bounds that stand for the one called `name` where both are given."""
    return arguments.get(f"{name}_low"), arguments.get(f"{name}_high")


def _is_in(value: Any, rule: str | tuple[str, ...]) -> bool:
    if isinstance(rule, tuple):
        return value in rule
    if not isinstance(value, int | float):
        return True  # of the wrong kind, which is told elsewhere
    low, high = (float(end) for end in rule[1:-1].split(","))
    is_above = value > low if rule[0] == "(" else value >= low
    return is_above and (value < high if rule[-1] == ")" else value <= high)


def _said(rule: str | tuple[str, ...]) -> str:
    """Return an interval or words as a reader says them."""
    if isinstance(rule, tuple):
        return f"one of {', '.join(rule)}"
    low, high = rule[1:-1].split(", ")
    if low == "-inf":
        return "a finite number"
    if high == "inf":
        return f"a {'finite ' * (rule[-1] == ')')}number {'>' if rule[0] == '(' else '>='} {low}"
    return f"a number in {rule}"
