"""Rules of registered classes: existence, arguments and their ranges."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trinity.common.config.keys import KEYS, Key, last_part
from trinity.common.config.mixture import DERIVED_ARGUMENTS
from trinity.common.config.nearest import nearest
from trinity.common.config.resolution import Resolution
from trinity.common.constants import LOSS_AGG_MODES, VERL_LOSS_AGG_MODES
from trinity.utils.entry import Entry
from trinity.utils.kinds import TEXT

CHECKED_ELSEWHERE = (*DERIVED_ARGUMENTS, "expert_data_ratio", "rollout_is_threshold")
AGG_MODES = {"trinity": LOSS_AGG_MODES, "verl": VERL_LOSS_AGG_MODES}
OF_PLUGINS = ("workflow", "reward_fn", "operator", "selector")
KINDS: dict[type, str] = {bool: "true or false", float: "a number", str: "a text"}


def check_name(
    resolution: Resolution, key: Key[object], registry: str, name: str | None, *, unknown: str = "E1701"
) -> bool:
    """Return whether a name exists; note why not."""
    catalogue = resolution.catalogue
    if unknown == "E1701" and registry in OF_PLUGINS and not resolution.looks_at_machine:
        unknown = "W1701"  # which plugins there are depends on the machine of the run
    if name is not None and (name in catalogue.dotted.get(registry, ()) or (registry, name) in catalogue.dotted_faults):
        return _check_place(resolution, key, registry, name, unknown)
    available = list(catalogue.names(registry))
    if name is None or name in available:
        entry = catalogue.entry(registry, name)
        if entry is not None and entry.deprecated_for:
            way_out = f"write `{key}: {entry.deprecated_for}`"
            resolution.problem("W1301", key, f"`{key}: {name}` is deprecated", suggestion=way_out)
        return True
    if catalogue.has_unknown_plugins:
        resolution.problem(
            "W1701", key, f"`{key}: {name}` is not known here; a plugin may register it when the run starts"
        )
        return False
    near = nearest(name, available)
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


def _check_place(resolution: Resolution, key: Key[object], registry: str, name: str, code: str) -> bool:
    """Return whether a name such as `package.module.Class` leads to a class."""
    reason = resolution.catalogue.dotted_faults.get((registry, name))
    if reason is not None:
        resolution.problem(
            code,
            key,
            f"`{key}: {name}` names no {registry}: {reason}",
            suggestion="put the folder of its package on PYTHONPATH, or register it in a file under --plugin-dir",
            rule=f"a known {registry}",
        )
    return reason is None


@dataclass(frozen=True)
class Chosen:
    """A class that the configuration chooses by its name.

    Attributes:
        key: where it is chosen.
        args: key of its arguments.
        registry: where it is registered.
        name: its name there.
    """

    key: Key[object]
    args: Key[dict[str, Any]]
    registry: str
    name: str


def resolve_arguments(resolution: Resolution, chosen: Chosen, of_type: Mapping[str, Any] | None = None) -> None:
    """Check the arguments of a class and fill in its defaults.

    Args:
        resolution: the configuration.
        chosen: the class.
        of_type: arguments that the algorithm type gives it.
    """
    entry = resolution.catalogue.entry(chosen.registry, chosen.name)
    stray = [] if entry is None or entry.is_open else sorted((of_type or {}).keys() - _names(entry))
    if entry is not None and stray:
        resolution.problem(
            "E1703",
            chosen.key,
            f"the defaults of algorithm_type {resolution.config.algorithm.algorithm_type} give `{chosen.name}` an "
            f"argument `{stray[0]}`, which it does not have; known: {', '.join(_names(entry)) or 'none'}",
            involves=(KEYS.algorithm.algorithm_type,),
            suggestion=f"correct `{last_part(chosen.args)}` in its `default_config`",
        )
    resolution.derive(chosen.args, check_arguments(resolution, chosen, of_type), f"defaults of {chosen.name}")


def check_arguments(
    resolution: Resolution,
    chosen: Chosen,
    of_type: Mapping[str, Any] | None = None,
    *,
    ignored: Collection[str] = (),
) -> dict[str, Any]:
    """Return arguments over defaults; note what the class would refuse.

    A plugin's are checked as far as it declares them.

    Args:
        resolution: the configuration.
        chosen: the class.
        of_type: arguments that the algorithm type gives it.
        ignored: arguments that something else has told of.
    """
    entry = resolution.catalogue.entry(chosen.registry, chosen.name)
    if entry is None:
        return dict(resolution.get(chosen.args) or {})
    known = {**entry.args, **(of_type or {})}
    written = _known_arguments(resolution, chosen, entry, known, ignored=ignored)
    arguments = {**known, **written}
    is_built_in = resolution.catalogue.is_built_in(chosen.registry, chosen.name)
    checked = {n: v for n, v in known.items() if is_built_in or n in entry.ranges or n == "loss_agg_mode"}
    _check_kinds(resolution, chosen, checked, written, modes=AGG_MODES[entry.convention])
    told = {problem.key for problem in resolution.problems}
    for name, rule, way_out in range_faults(entry, checked, arguments):
        key = chosen.args[name]
        if str(key) not in told and name not in CHECKED_ELSEWHERE:
            message = f"`{key}` of {chosen.name} must be {rule}, got {arguments[name]!r}"
            resolution.problem("E1302", key, message, rule=rule, involves=(chosen.key,), suggestion=way_out)
    return arguments


def _known_arguments(
    resolution: Resolution, chosen: Chosen, entry: Entry, known: Mapping[str, Any], *, ignored: Collection[str]
) -> dict[str, Any]:
    """Return known written arguments; note unknown and missing required ones."""
    written, key, names = resolution.get(chosen.args) or {}, chosen.args, _names(entry)
    if not entry.is_open:
        for name in [n for n in written if n not in names and n not in ignored]:
            near = nearest(name, names)
            hint = f"did you mean `{near}`?" if near else f"known: {', '.join(names) or 'none'}"
            resolution.problem(
                "E1703",
                key[name],
                f"`{chosen.name}` has no argument `{name}`; known: {', '.join(names) or 'none'}",
                suggestion=hint,
            )
        written = {name: value for name, value in written.items() if name in names}
    # Which arguments it needs, the installed version of its package decides.
    is_seen = not entry.package or resolution.looks_at_machine
    for name in sorted(entry.required - {*known, *written}):
        resolution.problem(
            "E1706" if is_seen else "W1706",
            key,
            f"`{key[name]}` of {chosen.name} must be given: there is no default for it",
            involves=(chosen.key,),
            suggestion=f"write `{name}` under `{key}`",
        )
    return dict(written)


def _names(entry: Entry) -> list[str]:
    return sorted({*entry.args, *entry.required})


def _check_kinds(
    resolution: Resolution,
    chosen: Chosen,
    known: Mapping[str, Any],
    written: Mapping[str, Any],
    *,
    modes: tuple[str, ...],
) -> None:
    """Note each value of another type than its default, unless one is null."""
    for name, value in written.items():
        if name not in known or name in CHECKED_ELSEWHERE:
            continue
        kind = next((kind for kind in (bool, float, str) if _is_a(known[name], kind)), None)
        choices = modes if name.endswith("loss_agg_mode") else ()
        if value is None or value in choices or (not choices and (kind is None or _is_a(value, kind))):
            continue
        rule = f"one of {', '.join(choices)}" if choices else KINDS[kind or str]
        near = nearest(str(value), choices) if choices else None
        key = chosen.args[name]
        resolution.problem(
            "E1704",
            key,
            f"`{key}` of {chosen.name} must be {rule}, got {value!r}",
            rule=rule,
            suggestion=f"did you mean `{near}`?" if near else f"the default is {known[name]}",
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
        switch = entry.needed_if.get(name)
        if default is not None:
            way_out = f"the default is {default}"
        elif switch is not None and (not switch or arguments.get(switch) is True):  # without it is an error, too
            way_out = f"write such a `{name}`" + (f", or `{switch}: false`" if switch else "")
        else:
            way_out = "remove it"
        is_unused = _has_sides(known, name) and None not in _sides(arguments, name)
        if value is None:
            is_needed = isinstance(default, int | float | str) and not isinstance(default, bool)
            if is_needed and not entry.may_be_null(name) and not name.endswith("agg_mode"):
                yield name, _said(rule) if rule else "a number" if not isinstance(default, str) else "a text", way_out
        elif (
            rule is not None
            and not is_unused
            and (not _is_in(value, _in_numbers(rule, arguments)) or _is_no_number(value, default, rule))
        ):
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


def _in_numbers(rule: str | tuple[str, ...], arguments: Mapping[str, Any]) -> str | tuple[str, ...]:
    """Return an interval with the values of the arguments that it names.

    An argument that is null is no bound.
    """
    if isinstance(rule, tuple) or rule == TEXT:
        return rule
    low, high = (
        arguments[end] if end in arguments and arguments[end] is not None else unlimited if end in arguments else end
        for end, unlimited in zip(rule[1:-1].split(", "), ("-inf", "inf"), strict=True)
    )
    return f"{rule[0]}{low}, {high}{rule[-1]}"


def _is_in(value: Any, rule: str | tuple[str, ...]) -> bool:
    if isinstance(rule, tuple):
        return value in rule
    if rule == TEXT:
        return isinstance(value, str)
    if not isinstance(value, int | float):
        return True  # of the wrong kind, which is reported elsewhere
    low, high = (float(end) for end in rule[1:-1].split(","))
    is_above = value > low if rule[0] == "(" else value >= low
    return is_above and (value < high if rule[-1] == ")" else value <= high)


def _is_no_number(value: Any, default: Any, rule: str | tuple[str, ...]) -> bool:
    """Return whether a value is no number where an interval needs one."""
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
