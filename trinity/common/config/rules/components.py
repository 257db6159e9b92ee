"""Rules of components by name: existence, arguments and their ranges."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trinity.common.config.buffer import DataSelectorConfig
from trinity.common.config.keys import KEYS, Key, args_of, last_part
from trinity.common.config.mixture import DERIVED_ARGUMENTS
from trinity.common.config.nearest import nearest
from trinity.common.config.resolution import Resolution
from trinity.common.constants import LOSS_AGG_MODES, VERL_LOSS_AGG_MODES
from trinity.utils.entry import Entry
from trinity.utils.kinds import TEXT

CHECKED_ELSEWHERE = (*DERIVED_ARGUMENTS, "expert_data_ratio", "rollout_is_threshold")
AGG_MODES = {"trinity": LOSS_AGG_MODES, "verl": VERL_LOSS_AGG_MODES}
KINDS: dict[type, str] = {bool: "true or false", float: "a number", str: "a text"}


def check_name(
    resolution: Resolution, key: Key[object], registry: str, name: str | None, *, unknown: str = "E1701"
) -> bool:
    """Return whether a name exists and is usable now; note why not."""
    catalogue = resolution.catalogue
    available = list(catalogue.names(registry))
    if name is None or name in available:
        entry = catalogue.entry(registry, name)
        if entry is not None and entry.deprecated_for:
            way_out = f"write `{key}: {entry.deprecated_for}`"
            resolution.problem("W1301", key, f"`{key}: {name}` is deprecated", suggestion=way_out)
        return True
    later = catalogue.later.get(registry, ())
    if name in later:
        resolution.problem(
            "E1900",
            key,
            f"`{key}: {name}` is not available yet in this version",
            suggestion=f"available: {', '.join(available)}",
        )
        return False
    names = [*available, *later]
    if catalogue.has_unknown_plugins:
        resolution.problem(
            "W1701", key, f"`{key}: {name}` is not known here; a plugin may register it when the run starts"
        )
        return False
    near = nearest(name, names)
    own = "a name of your own needs --plugin-dir (or `plugin_dirs`) with the folder of the file that registers it"
    hint = f"did you mean `{near}`? {own}" if near else f"known: {', '.join(available)}; {own}"
    resolution.problem(
        unknown,
        key,
        f"unknown {registry} `{name}` in `{key}`; known: {', '.join(available)}",
        suggestion=hint,
        rule=f"a known {registry}",
    )
    return False


def resolve_arguments(
    resolution: Resolution,
    key: Key[str | None],
    registry: str,
    function: str,
    *,
    entry: Entry,
    of_type: Mapping[str, Any],
) -> None:
    """Fill the arguments of a function and check them.

    A plugin's are checked as far as it declares them.

    Args:
        resolution: the configuration.
        key: where the function is chosen.
        registry: of the function.
        function: its name.
        entry: the declarations of its class.
        of_type: arguments that the algorithm type gives it.
    """
    stray = sorted(of_type.keys() - entry.args.keys() - entry.required)
    if stray and not entry.is_open:
        resolution.problem(
            "E1703",
            key,
            f"the defaults of algorithm_type {resolution.config.algorithm.algorithm_type} give `{function}` an "
            f"argument `{stray[0]}`, which it does not have; known: {', '.join(_names(entry)) or 'none'}",
            involves=(KEYS.algorithm.algorithm_type,),
            suggestion=f"mend `{last_part(args_of(key))}` in its `default_config`",
        )
    known = {**entry.args, **of_type}
    written = resolution.get(args_of(key)) or {}
    merge_arguments(resolution, key, function, known, entry=entry)
    is_built_in = resolution.catalogue.is_built_in(registry, function)
    checked = {n: v for n, v in known.items() if is_built_in or n in entry.ranges or n == "loss_agg_mode"}
    check_kinds(resolution, args_of(key), function, checked, written=written, modes=AGG_MODES[entry.convention])
    arguments = resolution.get(args_of(key)) or {}
    _check_ranges(resolution, args_of(key), function, checked, entry=entry, arguments=arguments, chosen=key)


def check_arguments(
    resolution: Resolution,
    key: Key[dict[str, Any]],
    registry: str,
    name: str,
    *,
    chosen: Key[object],
    ignored: Collection[str] = (),
) -> dict[str, Any]:
    """Return arguments over defaults; note what the class would refuse.

    For classes that are no part of an algorithm.

    Args:
        resolution: the configuration.
        key: of the arguments.
        registry: of the class.
        name: its name.
        chosen: where the name is written.
        ignored: arguments that something else has told of.
    """
    entry = resolution.catalogue.entry(registry, name)
    if entry is None:
        return dict(resolution.get(key) or {})
    written = _known_arguments(resolution, key, name, entry.args, entry=entry, chosen=chosen, ignored=ignored)
    arguments = {**entry.args, **written}
    is_built_in = resolution.catalogue.is_built_in(registry, name)
    checked = {n: v for n, v in entry.args.items() if is_built_in or n in entry.ranges}
    check_kinds(resolution, key, name, checked, written=written)
    _check_ranges(resolution, key, name, checked, entry=entry, arguments=arguments, chosen=chosen)
    return arguments


def check_selector(resolution: Resolution, key: Key[DataSelectorConfig]) -> None:
    """Check that a selector exists, and its arguments."""
    name = resolution.get(key.selector_type)
    if check_name(resolution, key.selector_type, "selector", name):
        check_arguments(resolution, key.kwargs, "selector", name, chosen=key.selector_type)


def merge_arguments(
    resolution: Resolution, key: Key[str | None], function: str, known: Mapping[str, Any], *, entry: Entry | None = None
) -> None:
    """Merge written arguments over defaults; refuse unknown and missing ones.

    Args:
        resolution: the configuration.
        key: where the function is chosen.
        function: its name.
        known: arguments with their defaults.
        entry: the declarations of its class; None for a plugin without any.
    """
    written = _known_arguments(resolution, args_of(key), function, known, entry=entry, chosen=key)
    resolution.derive(args_of(key), {**known, **written}, f"defaults of {function}")


def _known_arguments(
    resolution: Resolution,
    key: Key[dict[str, Any]],
    function: str,
    known: Mapping[str, Any],
    *,
    entry: Entry | None,
    chosen: Key[object],
    ignored: Collection[str] = (),
) -> dict[str, Any]:
    """Return known written arguments; note unknown and missing required ones."""
    written = resolution.get(key) or {}
    if entry is not None and not entry.is_open:
        names = _names(entry)
        for name in [n for n in written if n not in names and n not in ignored]:
            near = nearest(name, names)
            hint = f"did you mean `{near}`?" if near else f"known: {', '.join(names) or 'none'}"
            resolution.problem(
                "E1703",
                key[name],
                f"`{function}` has no argument `{name}`; known: {', '.join(names) or 'none'}",
                suggestion=hint,
            )
        written = {name: value for name, value in written.items() if name in names}
    for name in sorted((entry.required if entry is not None else frozenset()) - {*known, *written}):
        resolution.problem(
            "E1302",
            key,
            f"`{key[name]}` of {function} must be given: its constructor has no default for it",
            involves=(chosen,),
            suggestion=f"write `{name}` under `{key}`",
        )
    return dict(written)


def _names(entry: Entry) -> list[str]:
    return sorted({*entry.args, *entry.required})


def check_kinds(
    resolution: Resolution,
    key: Key[dict[str, Any]],
    function: str,
    known: Mapping[str, Any],
    *,
    written: Mapping[str, Any],
    modes: tuple[str, ...] = (),
) -> None:
    """Note each value of another type than its default, unless one is null."""
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
        resolution.problem(
            "E1704",
            key[name],
            f"`{key[name]}` of {function} must be {rule}, got {value!r}",
            rule=rule,
            suggestion=f"did you mean `{near}`?" if near else f"the default is {known[name]}",
        )


def _check_ranges(
    resolution: Resolution,
    key: Key[dict[str, Any]],
    function: str,
    known: Mapping[str, Any],
    *,
    entry: Entry,
    arguments: Mapping[str, Any],
    chosen: Key[object],
) -> None:
    """Note each argument that the function would refuse for its range."""
    told = {problem.key for problem in resolution.problems}
    for name, rule, way_out in range_faults(entry, known, arguments):
        if str(key[name]) not in told and name not in CHECKED_ELSEWHERE:
            resolution.problem(
                "E1302",
                key[name],
                f"`{key[name]}` of {function} must be {rule}, got {arguments[name]!r}",
                rule=rule,
                involves=(chosen,),
                suggestion=way_out,
            )


def _is_a(value: Any, kind: type) -> bool:
    """Return whether a value has a type; integers are floats, NaN is not."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return isinstance(value, kind)


def range_faults(
    entry: Entry, known: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield argument, rule and way out of each value that is out of range.

    Args:
        entry: what the class declares.
        known: its arguments with their defaults.
        arguments: all arguments, the defaults among them; of the kinds of their defaults.
    """
    for name, default in known.items():
        value, rule = arguments[name], entry.ranges.get(name)
        way_out = f"the default is {default}" if default is not None else "remove it"
        is_unused = _has_sides(known, name) and None not in _sides(arguments, name)
        if value is None:
            is_needed = isinstance(default, int | float | str) and not isinstance(default, bool)
            if is_needed and not entry.may_be_null(name) and not name.endswith("agg_mode"):
                yield name, _said(rule) if rule else "a number" if not isinstance(default, str) else "a text", way_out
        elif rule is not None and not is_unused and (not _is_in(value, rule) or _is_no_number(value, default, rule)):
            yield name, _said(rule), way_out
    yield from _missing(entry, known, arguments)


def _missing(entry: Entry, known: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield missing arguments that other arguments make necessary."""
    for name in filter(lambda name: _has_sides(known, name), known):
        if known[name] is not None and arguments[name] is None and None in _sides(arguments, name):
            yield name, f"a number, unless {name}_low and {name}_high are given", f"the default is {known[name]}"
    for name, switch in ((name, switch) for name, switch in entry.needed_if.items() if name in known):
        if not switch and arguments.get(name) is None:
            yield name, "a number > 0", f"write `{name}: 1.0`"
        elif switch and arguments.get(switch) is True and not _is_in(arguments.get(name) or 0, "(0, inf]"):
            yield name, f"a number > 0 with {switch}: true", f"write `{name}`, or `{switch}: false`"


def _has_sides(known: Mapping[str, Any], name: str) -> bool:
    """Return whether two other arguments can replace `name`."""
    return f"{name}_low" in known and f"{name}_high" in known


def _sides(arguments: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Return the two bounds that replace `name` if both are given."""
    return arguments.get(f"{name}_low"), arguments.get(f"{name}_high")


def _is_in(value: Any, rule: str | tuple[str, ...]) -> bool:
    if isinstance(rule, tuple):
        return value in rule
    if rule == TEXT:
        return isinstance(value, str)
    if not isinstance(value, int | float):
        return True  # of the wrong kind, which is told elsewhere
    low, high = (float(end) for end in rule[1:-1].split(","))
    is_above = value > low if rule[0] == "(" else value >= low
    return is_above and (value < high if rule[-1] == ")" else value <= high)


def _is_no_number(value: Any, default: Any, rule: str | tuple[str, ...]) -> bool:
    """Return whether an interval gets something else and null tells no kind."""
    return default is None and isinstance(rule, str) and rule != TEXT and not _is_a(value, float)


def _said(rule: str | tuple[str, ...]) -> str:
    """Return an interval or a choice of words in plain English."""
    if isinstance(rule, tuple):
        return f"one of {', '.join(rule)}"
    if rule == TEXT:
        return KINDS[str]
    low, high = rule[1:-1].split(", ")
    if low == "-inf":
        return "a finite number"
    if high == "inf":
        return f"a {'finite ' * (rule[-1] == ')')}number {'>' if rule[0] == '(' else '>='} {low}"
    return f"a number in {rule}"
