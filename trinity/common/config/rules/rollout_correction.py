"""Rules of `algorithm.rollout_correction`: presets, bounds, requirements."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from trinity.common.config.following import fall_back, note_idle
from trinity.common.config.keys import KEYS, Key, args_of, last_part, part_of, path_of, present
from trinity.common.config.resolution import Resolution
from trinity.common.config.rollout_correction import PRESETS
from trinity.utils.correction_options import band, rejection_bounds

SECTION = present(KEYS.algorithm.rollout_correction)
OLD = KEYS.algorithm.bypass_old_logprobs
LOSS = KEYS.algorithm.policy_loss_fn
ARGS = args_of(LOSS)
_OF_LOSS = (
    "loss_type", "rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs",
    "rollout_rs_threshold",
)  # fmt: skip
_JOINED = re.compile(r"[0-9.]*[0-9.]_[0-9._]+")


def resolve_correction(resolution: Resolution, clips: Mapping[str, Any]) -> None:
    """Fill the section from its preset, and what follows from it.

    That is the source of the old log-probabilities, and the loss.

    Args:
        resolution: its algorithm type is filled in, its functions are not resolved yet.
        clips: arguments that the algorithm type gives its policy loss.
    """
    section = resolution.config.algorithm.rollout_correction
    if section is None:
        return
    written, preset = dict(section), section.preset
    for name, value in PRESETS.get(preset or "", {}).items():
        if written[name] is None:
            resolution.derive(part_of(SECTION, name), value, f"preset {preset}")
    note_idle(resolution, SECTION, is_written=lambda key: written[last_part(key)] is not None)
    if preset is None and all(written[name] is None for name in ("rollout_is", "rollout_rs", "bypass_mode")):
        return
    fall_back(resolution, SECTION.rollout_is_batch_normalize, SECTION.bypass_mode, reason="default")
    if section.rollout_is:
        fall_back(resolution, SECTION.rollout_is_threshold, reason="default")
    _check_bounds(resolution)
    if section.bypass_mode:
        _resolve_bypass(resolution, clips)
    else:
        recompute(
            resolution, SECTION, "compares the rollout's log-probabilities with those of the weights before the step"
        )


def recompute(resolution: Resolution, key: Key[object], reason: str) -> None:
    """Have old log-probabilities recomputed, or note a conflicting setting."""
    if not resolution.is_given(OLD):
        resolution.derive(OLD, False, key)
    elif resolution.get(OLD):
        resolution.problem(
            "E1851",
            OLD,
            f"`{OLD}` is true, but {key} {reason}",
            rule="false",
            involves=(key,),
            suggestion="remove it, or write false",
        )


def check_correction(resolution: Resolution) -> None:
    """Check that the policy loss, now resolved, supports the correction."""
    loss = resolution.get(LOSS)
    entry = resolution.catalogue.entry("policy_loss_fn", loss)
    values = resolution.config.algorithm.rollout_correction
    bypasses = entry is not None and entry.of_rollout_logprobs
    if bypasses and not resolution.get(OLD):
        resolution.problem(
            "E1851",
            OLD,
            f"`{OLD}` is false, but the policy loss {loss} takes the rollout's log-probabilities for the old ones",
            rule="true",
            involves=(LOSS, SECTION),
            suggestion="remove it, or write true",
        )
    if values is None or values.bypass_mode is None:
        return
    is_on = values.rollout_is or values.rollout_rs
    if resolution.trains_on_dataset:
        dataset = "which trains on a dataset: no policy sampled it"
        _refuse(resolution, SECTION, "E1853", KEYS.algorithm.algorithm_type, dataset)
    elif entry is not None and "expert_mask" in entry.needs and is_on:
        _refuse(resolution, SECTION, "E1853", LOSS, "whose expert rows no policy sampled")
    elif entry is not None and values.rollout_is and not values.bypass_mode:
        if not entry.may_read("rollout_is_weights"):
            _refuse(resolution, SECTION.rollout_is, "E1852", LOSS, "which takes no weights; rollout_rs works with it")
    elif bypasses and not values.bypass_mode:
        _refuse(resolution, SECTION.bypass_mode, "E1852", LOSS, "which corrects by itself: write `bypass_mode: true`")


def _refuse(resolution: Resolution, key: Key[object], code: str, other: Key[object], why: str) -> None:
    resolution.problem(
        code,
        key,
        f"`{key}` does not fit {last_part(other)} {resolution.get(other)}, {why}",
        involves=(other,),
        suggestion=f"remove it, or choose another {last_part(other)}",
    )


def _resolve_bypass(resolution: Resolution, clips: Mapping[str, Any]) -> None:
    """Choose the loss of bypass mode, with the options as arguments."""
    fall_back(resolution, SECTION.loss_type, reason="default")
    section, chosen = resolution.get(SECTION), resolution.get(LOSS)
    if section.rollout_is_batch_normalize:
        resolution.problem(
            "E1853",
            SECTION.rollout_is_batch_normalize,
            f"`{SECTION.rollout_is_batch_normalize}` does not fit bypass_mode: weights made in the loss know no mean "
            "of the batch",
            involves=(SECTION.bypass_mode,),
            suggestion="remove it, or write `bypass_mode: false`",
        )
    if section.rollout_is and section.loss_type == "ppo_clip" and resolution.is_own(SECTION.rollout_is):
        why = "with loss_type ppo_clip, whose ratio corrects already: it is only measured"
        _no_effect(resolution, SECTION.rollout_is, why)
    entry = resolution.catalogue.entry("policy_loss_fn", chosen)
    bypasses = entry is not None and entry.of_rollout_logprobs
    stand_in = "" if entry is None or resolution.is_given(LOSS) else entry.in_bypass_mode
    if not bypasses and not stand_in:
        _refuse(resolution, SECTION.bypass_mode, "E1852", LOSS, "because it is a policy loss of its own")
        return
    arguments, values = dict(resolution.get(ARGS) or {}), dict(section)
    for name in _OF_LOSS:
        if name in arguments and str(arguments[name]) != str(values[name]):
            other = part_of(SECTION, name)
            resolution.problem(
                "E1815",
                ARGS[name],
                f"`{ARGS[name]}` is {arguments[name]}, but {other} is {values[name]}",
                involves=(SECTION,),
                suggestion=f"keep `{other}`",
            )
    if entry is not None and not bypasses:
        resolution.derive(LOSS, stand_in, SECTION.bypass_mode)
        names = entry.names_in_bypass_mode
        arguments = {names[name]: value for name, value in clips.items() if name in names} | arguments
    taken = {name: values[name] for name in _OF_LOSS if values[name] is not None}
    resolution.derive(ARGS, arguments | taken, SECTION)


def _check_bounds(resolution: Resolution) -> None:
    section = resolution.get(SECTION)
    weights, rejection = section.rollout_is, section.rollout_rs
    checks: dict[Key[Any], Callable[[], object]] = {
        SECTION.rollout_is_threshold: lambda: weights and band(resolution.filled(SECTION.rollout_is_threshold), "it"),
        SECTION.rollout_rs: lambda: rejection and rejection_bounds(rejection, "1"),
        SECTION.rollout_rs_threshold: lambda: rejection and rejection_bounds(rejection, section.rollout_rs_threshold),
    }
    for key, check in checks.items():
        joined = _read_as_one_number(resolution, key)
        if joined is not None:
            _bad_bound(resolution, key, f"is {joined}, which YAML reads as one number", f"write '{joined}' in quotes")
            return
        try:
            check()
        except ValueError as error:
            _bad_bound(resolution, key, f"is refused: {error}", None)
            return


def _read_as_one_number(resolution: Resolution, key: Key[object]) -> str | None:
    """Return two numbers that YAML reads as one: unquoted 0.5_2 is 0.52."""
    origin = resolution.origin(key) if last_part(key).endswith("threshold") and resolution.is_given(key) else None
    if origin is None:
        return None
    raw = resolution.tree.get(path_of(key))
    numbers = {float(v) for v in (raw if isinstance(raw, list) else [raw]) if isinstance(v, int | float)}
    for text in _JOINED.findall(origin.text or ""):
        plain = text.replace("_", "")
        if plain.count(".") < 2 and float(plain) in numbers:
            return str(text)
    return None


def _bad_bound(resolution: Resolution, key: Key[object], what: str, suggestion: str | None) -> None:
    resolution.problem(
        "E1850", key, f"`{key}` {what}", involves=(SECTION,), suggestion=suggestion or "for example '0.5_2.0' or 2.0"
    )


def _no_effect(resolution: Resolution, key: Key[object], why: str) -> None:
    resolution.problem("W1902", key, f"`{key}` has no effect {why}", suggestion="remove it")
