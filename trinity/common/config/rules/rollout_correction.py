"""Rules of `algorithm.rollout_correction`: presets, bounds, and what it asks of old log-probabilities and loss."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from trinity.common.config.draft import Draft
from trinity.common.config.keys import KEYS, Key, args_of, last_part, part_of, path_of, present
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
_CLIP_NAMES = {
    "clip_range": "clip_ratio", "clip_range_low": "clip_ratio_low", "clip_range_high": "clip_ratio_high",
    "clip_ratio_c": "clip_ratio_c", "loss_agg_mode": "loss_agg_mode",
}  # fmt: skip
_JOINED = re.compile(r"[0-9.]*[0-9.]_[0-9._]+")


def resolve_correction(draft: Draft, clips: Mapping[str, Any]) -> None:
    """Fill the section from its preset, and what follows from it: where the old log-probabilities come from, the loss.

    Args:
        draft: its algorithm type is filled in, its functions are not resolved yet.
        clips: arguments that the algorithm type gives its policy loss.
    """
    section = draft.config.algorithm.rollout_correction
    if section is None:
        return
    written, preset = dict(section), section.preset
    for name, value in PRESETS.get(preset or "", {}).items():
        if written[name] is None:
            draft.derive(part_of(SECTION, name), value, f"preset {preset}")
    _note_unused(draft, written)
    if preset is None and all(written[name] is None for name in ("rollout_is", "rollout_rs", "bypass_mode")):
        return
    for key in (SECTION.rollout_is_batch_normalize, SECTION.bypass_mode):
        if draft.get(key) is None:
            draft.derive(key, False, "default")
    if section.rollout_is and section.rollout_is_threshold is None:
        draft.derive(SECTION.rollout_is_threshold, "2.0", "default")
    _check_bounds(draft)
    if section.bypass_mode:
        _resolve_bypass(draft, clips)
    else:
        recompute(draft, SECTION, "compares the rollout's log-probabilities with those of the weights before the step")


def recompute(draft: Draft, key: Key[object], reason: str) -> None:
    """Have the old log-probabilities computed again, or note that the configuration says otherwise."""
    if not draft.is_given(OLD):
        draft.derive(OLD, False, key)
    elif draft.get(OLD):
        draft.problem(
            "E1851",
            OLD,
            f"`{OLD}` is true, but {key} {reason}",
            rule="false",
            involves=(key,),
            suggestion="remove it, or write false",
        )


def check_correction(draft: Draft) -> None:
    """Check that the policy loss can do what the correction asks for; every function is resolved."""
    loss = draft.get(LOSS)
    entry = draft.catalogue.entry("policy_loss_fn", loss)
    values = draft.config.algorithm.rollout_correction
    bypasses = entry is not None and entry.of_rollout_logprobs
    if bypasses and not draft.get(OLD):
        draft.problem(
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
    if draft.trains_on_dataset:
        dataset = "which trains on a dataset: no policy sampled it"
        _refuse(draft, SECTION, "E1853", KEYS.algorithm.algorithm_type, dataset)
    elif entry is not None and "expert_mask" in entry.needs and is_on:
        _refuse(draft, SECTION, "E1853", LOSS, "whose expert rows no policy sampled")
    elif entry is not None and values.rollout_is and not values.bypass_mode:
        if "rollout_is_weights" not in entry.reads:
            _refuse(draft, SECTION.rollout_is, "E1852", LOSS, "which takes no weights; rollout_rs works with it")
    elif bypasses and not values.bypass_mode:
        _refuse(draft, SECTION.bypass_mode, "E1852", LOSS, "which corrects by itself: write `bypass_mode: true`")


def _refuse(draft: Draft, key: Key[object], code: str, other: Key[object], why: str) -> None:
    draft.problem(
        code,
        key,
        f"`{key}` does not fit {last_part(other)} {draft.get(other)}, {why}",
        involves=(other,),
        suggestion=f"remove it, or choose another {last_part(other)}",
    )


def _resolve_bypass(draft: Draft, clips: Mapping[str, Any]) -> None:
    """Make `bypass_mode` the policy loss, with the options of the section as its arguments."""
    if draft.get(SECTION.loss_type) is None:
        draft.derive(SECTION.loss_type, "ppo_clip", "default")
    section, chosen = draft.get(SECTION), draft.get(LOSS)
    if section.rollout_is_batch_normalize:
        draft.problem(
            "E1853",
            SECTION.rollout_is_batch_normalize,
            f"`{SECTION.rollout_is_batch_normalize}` does not fit bypass_mode: weights made in the loss know no mean "
            "of the batch",
            involves=(SECTION.bypass_mode,),
            suggestion="remove it, or write `bypass_mode: false`",
        )
    if section.rollout_is and section.loss_type == "ppo_clip" and draft.is_own(SECTION.rollout_is):
        why = "with loss_type ppo_clip, whose ratio corrects already: it is only measured"
        _no_effect(draft, SECTION.rollout_is, why)
    entry = draft.catalogue.entry("policy_loss_fn", chosen)
    bypasses = entry is not None and entry.of_rollout_logprobs
    if not bypasses and (draft.is_given(LOSS) or chosen not in ("ppo", "verl_vanilla")):
        _refuse(draft, SECTION.bypass_mode, "E1852", LOSS, "because it is a policy loss of its own")
        return
    arguments, values = dict(draft.get(ARGS) or {}), dict(section)
    for name in _OF_LOSS:
        if name in arguments and str(arguments[name]) != str(values[name]):
            other = part_of(SECTION, name)
            draft.problem(
                "E1815",
                ARGS[name],
                f"`{ARGS[name]}` is {arguments[name]}, but {other} is {values[name]}",
                involves=(SECTION,),
                suggestion=f"keep `{other}`",
            )
    if not bypasses:
        draft.derive(LOSS, "bypass_mode", SECTION.bypass_mode)
        arguments = {_CLIP_NAMES[name]: value for name, value in clips.items() if name in _CLIP_NAMES} | arguments
    taken = {name: values[name] for name in _OF_LOSS if values[name] is not None}
    draft.derive(ARGS, arguments | taken, SECTION)


def _check_bounds(draft: Draft) -> None:
    section = draft.get(SECTION)
    weights, rejection = section.rollout_is, section.rollout_rs
    checks: dict[Key[Any], Callable[[], object]] = {
        SECTION.rollout_is_threshold: lambda: weights and band(draft.filled(SECTION.rollout_is_threshold), "it"),
        SECTION.rollout_rs: lambda: rejection and rejection_bounds(rejection, "1"),
        SECTION.rollout_rs_threshold: lambda: rejection and rejection_bounds(rejection, section.rollout_rs_threshold),
    }
    for key, check in checks.items():
        joined = _read_as_one_number(draft, key)
        if joined is not None:
            _bad_bound(draft, key, f"is {joined}, which YAML reads as one number", f"write '{joined}' in quotes")
            return
        try:
            check()
        except ValueError as error:
            _bad_bound(draft, key, f"is refused: {error}", None)
            return


def _read_as_one_number(draft: Draft, key: Key[object]) -> str | None:
    """Return two numbers as they were written without quotes, where YAML makes one of them: 0.5_2 is 0.52."""
    origin = draft.origin(key) if last_part(key).endswith("threshold") and draft.is_given(key) else None
    if origin is None:
        return None
    raw = draft.tree.get(path_of(key))
    numbers = {float(v) for v in (raw if isinstance(raw, list) else [raw]) if isinstance(v, int | float)}
    for text in _JOINED.findall(origin.text or ""):
        plain = text.replace("_", "")
        if plain.count(".") < 2 and float(plain) in numbers:
            return str(text)
    return None


def _bad_bound(draft: Draft, key: Key[object], what: str, suggestion: str | None) -> None:
    draft.problem(
        "E1850", key, f"`{key}` {what}", involves=(SECTION,), suggestion=suggestion or "for example '0.5_2.0' or 2.0"
    )


def _note_unused(draft: Draft, written: Mapping[str, Any]) -> None:
    """Warn about options of a part that is off."""
    needs: dict[Key[object], Key[object]] = {
        SECTION.rollout_is_threshold: SECTION.rollout_is,
        SECTION.rollout_is_batch_normalize: SECTION.rollout_is,
        SECTION.rollout_rs_threshold: SECTION.rollout_rs,
        SECTION.loss_type: SECTION.bypass_mode,
    }
    for key, other in needs.items():
        if written[last_part(key)] is not None and not draft.get(other):
            _no_effect(draft, key, f"without {last_part(other)}")


def _no_effect(draft: Draft, key: Key[object], why: str) -> None:
    draft.problem("W1902", key, f"`{key}` has no effect {why}", suggestion="remove it")
