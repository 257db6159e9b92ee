"""Arguments of a function: those written over the defaults, and what of them its class would refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from trinity.common.config.algorithm import LossAggMode
from trinity.common.config.draft import Draft
from trinity.common.config.mixture import DERIVED_ARGUMENTS
from trinity.common.config.nearest import nearest
from trinity.common.config.rules.ranges import range_faults
from trinity.utils.entry import Entry

CHECKED_ELSEWHERE = (*DERIVED_ARGUMENTS, "expert_data_ratio", "rollout_is_threshold")
AGG_MODES = {"trinity": get_args(LossAggMode), "verl": (*get_args(LossAggMode), "token-sum")}
KINDS: dict[type, str] = {bool: "true or false", float: "a number", str: "a text"}


def resolve_arguments(
    draft: Draft, key: str, registry: str, function: str, *, entry: Entry, of_type: Mapping[str, Any]
) -> None:
    """Fill the arguments of a function, and check them; those of a plugin as far as it declares them.

    Args:
        draft: the configuration.
        key: where the function is chosen.
        registry: of the function.
        function: its name.
        entry: what its class says of itself.
        of_type: arguments that the algorithm type gives it.
    """
    stray = sorted(of_type.keys() - entry.args.keys() - entry.required)
    if stray and not entry.is_open:
        draft.problem(
            "E1703",
            key,
            f"the defaults of algorithm_type {draft.get('algorithm.algorithm_type')} give `{function}` an argument "
            f"`{stray[0]}`, which it does not have; known: {', '.join(_names(entry)) or 'none'}",
            involves=("algorithm.algorithm_type",),
            suggestion=f"mend `{key.rpartition('.')[2]}_args` in its `default_config`",
        )
    known = {**entry.args, **of_type}
    written = draft.get(f"{key}_args") or {}
    merge_arguments(draft, f"{key}_args", function, known, entry=entry)
    is_built_in = draft.catalogue.is_built_in(registry, function)
    checked = {n: v for n, v in known.items() if is_built_in or n in entry.ranges or n == "loss_agg_mode"}
    check_kinds(draft, f"{key}_args", function, checked, written=written, modes=AGG_MODES[entry.convention])
    _check_ranges(draft, f"{key}_args", function, checked, entry=entry, arguments=draft.get(f"{key}_args"))


def check_arguments(draft: Draft, key: str, registry: str, name: str) -> dict[str, Any]:
    """Return the arguments of what is no part of an algorithm over their defaults; note what the class would refuse.

    Args:
        draft: the configuration.
        key: of the arguments.
        registry: of the class.
        name: its name.
    """
    entry = draft.catalogue.entry(registry, name)
    if entry is None:
        return dict(draft.get(key) or {})
    written = _known_arguments(draft, key, name, entry.args, entry=entry)
    arguments = {**entry.args, **written}
    is_built_in = draft.catalogue.is_built_in(registry, name)
    checked = {n: v for n, v in entry.args.items() if is_built_in or n in entry.ranges}
    check_kinds(draft, key, name, checked, written=written)
    _check_ranges(draft, key, name, checked, entry=entry, arguments=arguments)
    return arguments


def merge_arguments(
    draft: Draft, key: str, function: str, known: Mapping[str, Any], *, entry: Entry | None = None
) -> None:
    """Put the written arguments over the defaults; refuse unknown ones, and ask for those that have no default.

    Args:
        draft: the configuration.
        key: of the arguments.
        function: its name.
        known: arguments with their defaults.
        entry: what its class says of itself; None for a plugin that says nothing.
    """
    written = _known_arguments(draft, key, function, known, entry=entry)
    draft.derive(key, {**known, **written}, f"defaults of {function}")


def _known_arguments(
    draft: Draft, key: str, function: str, known: Mapping[str, Any], *, entry: Entry | None
) -> dict[str, Any]:
    """Return the written arguments that there are; note unknown ones, and missing ones that have no default."""
    written = draft.get(key) or {}
    if entry is not None and not entry.is_open:
        names = _names(entry)
        for name in [n for n in written if n not in names]:
            near = nearest(name, names)
            hint = f"did you mean `{near}`?" if near else f"known: {', '.join(names) or 'none'}"
            draft.problem(
                "E1703",
                f"{key}.{name}",
                f"`{function}` has no argument `{name}`; known: {', '.join(names) or 'none'}",
                suggestion=hint,
            )
        written = {name: value for name, value in written.items() if name in names}
    for name in sorted((entry.required if entry is not None else frozenset()) - {*known, *written}):
        draft.problem(
            "E1302",
            key,
            f"`{key}.{name}` of {function} must be given: its constructor has no default for it",
            involves=(key.removesuffix("_args"),),
            suggestion=f"write `{name}` under `{key}`",
        )
    return dict(written)


def _names(entry: Entry) -> list[str]:
    return sorted({*entry.args, *entry.required})


def check_kinds(
    draft: Draft,
    key: str,
    function: str,
    known: Mapping[str, Any],
    *,
    written: Mapping[str, Any],
    modes: tuple[str, ...] = (),
) -> None:
    """Note a value that is of another kind than its default; what has none may be anything, and so may null be."""
    for name, value in written.items():
        if name not in known:
            continue
        kind = next((kind for kind in (bool, float, str) if _is_a(known[name], kind)), None)
        choices = modes if name.endswith("loss_agg_mode") else None
        if (
            value is None
            or name in CHECKED_ELSEWHERE
            or (choices is None and (kind is None or _is_a(value, kind)))
            or value in (choices or ())
        ):
            continue
        rule = f"one of {', '.join(choices)}" if choices else KINDS[kind or str]
        near = nearest(str(value), choices) if choices else None
        draft.problem(
            "E1704",
            f"{key}.{name}",
            f"`{key}.{name}` of {function} must be {rule}, got {value!r}",
            rule=rule,
            suggestion=f"did you mean `{near}`?" if near else f"the default is {known[name]}",
        )


def _check_ranges(
    draft: Draft, key: str, function: str, known: Mapping[str, Any], *, entry: Entry, arguments: Mapping[str, Any]
) -> None:
    """Note each argument that the function would refuse when the run starts; one of the wrong kind is told already."""
    told = {problem.key for problem in draft.problems}
    for name, rule, way_out in range_faults(entry.ranges, known, arguments):
        if f"{key}.{name}" not in told and name not in CHECKED_ELSEWHERE:
            draft.problem(
                "E1302",
                f"{key}.{name}",
                f"`{key}.{name}` of {function} must be {rule}, got {arguments[name]!r}",
                rule=rule,
                involves=(key.removesuffix("_args"),),
                suggestion=way_out,
            )


def _is_a(value: Any, kind: type) -> bool:
    """Return whether a value is a number (`float`: integers too, NaN not), a truth value or a text."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return isinstance(value, kind)
