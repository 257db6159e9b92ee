"""What numbers and words the built-in functions of an algorithm take; a test holds this equal to their constructors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trinity.utils.correction_options import LOSS_TYPES

# By registry and argument: an interval, or the words there are.
RANGES: dict[str, dict[str, str | tuple[str, ...]]] = {
    "policy_loss_fn": {
        **dict.fromkeys(("clip_range", "clip_range_low", "clip_range_high"), "[0, inf]"),
        **dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"), "[0, inf]"),
        **dict.fromkeys(("mask_clip_range_low", "mask_clip_range_high"), "[0, inf]"),
        **dict.fromkeys(("epsilon", "epsilon_low", "epsilon_high"), "[0, inf]"),
        **dict.fromkeys(("epsilon_low_prime", "epsilon_high_prime", "regularizer_coef"), "[0, inf]"),
        **dict.fromkeys(("tau", "sft_coef", "ppo_kl_coef", "mu_warmup_steps", "mu_decay_steps"), "[0, inf]"),
        **dict.fromkeys(("beta", "dro_beta", "tau_pos", "tau_neg", "temp"), "(0, inf]"),
        **dict.fromkeys(("mu", "mu_peak", "mu_valley", "clip_cov_ratio", "kl_cov_ratio"), "[0, 1]"),
        "clip_ratio_c": "(1, inf]",
        "cutoff_prob": "(0, 1]",
        "label_smoothing": "[0, 0.5)",
        "clip_mode": ("none", "one-side", "two-side", "ring", "gspo-one-side"),
        "weight": ("none", "importance_sampling", "gspo_importance_sampling", "advantage"),
        "regularizer": ("none", "k2", "forward-kl"),
        "loss_type": LOSS_TYPES,
    },
    "kl_fn": {"kl_coef": "[0, inf)"},
    "entropy_loss_fn": {"entropy_coef": "(-inf, inf)"},
    "advantage_fn": {
        **dict.fromkeys(("gamma", "lam"), "[0, 1]"),
        **dict.fromkeys(("tau", "temperature", "mu"), "(0, inf]"),
        "chunk_size": "[1, inf]",
        "lambda_coef": "[0, 1)",
        "max_frac": "(0, 1]",
        "fnorm": ("none", "std"),
        "estimator": ("value", "gradient"),
        "drop": ("balance",),
        "std_cal_level": ("group", "batch"),
        "opmd_baseline": ("mean", "logavgexp"),
    },
}
_CLIPS = ("clip_range", "clip_ratio")
# Arguments that may be null although their default is a number or a word, besides the two sides of a clip range.
_MAY_BE_NULL = (*_CLIPS, "drop")


def range_faults(
    registry: str, known: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield argument, rule and way out of each argument of a built-in function that its class would refuse.

    Args:
        registry: of the function.
        known: its arguments with their defaults.
        arguments: all arguments, the defaults among them; of the kinds of their defaults.
    """
    rules = RANGES.get(registry, {})
    for name, default in known.items():
        value, rule = arguments[name], rules.get(name)
        way_out = f"the default is {default}" if default is not None else "remove it"
        is_unused = name in _CLIPS and None not in _sides(arguments, name)
        if value is None:
            is_needed = isinstance(default, int | float | str) and not isinstance(default, bool)
            is_side = name.removesuffix("_low").removesuffix("_high") in known.keys() & _CLIPS
            if is_needed and not is_side and name not in _MAY_BE_NULL and not name.endswith("agg_mode"):
                yield name, _said(rule) if rule else "a number" if not isinstance(default, str) else "a text", way_out
        elif rule is not None and not is_unused and not _is_in(value, rule):
            yield name, _said(rule), way_out
    yield from _missing(registry, known, arguments)


def _missing(registry: str, known: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what must be given together with what is."""
    for name in _CLIPS:
        if known.get(name) is not None and arguments[name] is None and None in _sides(arguments, name):
            yield name, f"a number, unless {name}_low and {name}_high are given", f"the default is {known[name]}"
    if "dro_beta" in known and arguments["dro_beta"] is None:
        yield "dro_beta", "a number > 0", "write `dro_beta: 1.0`"
    if registry == "kl_fn" and arguments.get("adaptive") is True:
        for name in ("target_kl", "horizon"):
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
