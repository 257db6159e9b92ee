"""Sync styles other than `fixed`, and the bound on how old an experience may get before it is trained."""

from __future__ import annotations

from trinity.common.config.draft import Draft
from trinity.common.config.rules.batches import num_experts

STYLE = "synchronizer.sync_style"
LIMIT = "synchronizer.max_staleness"
IN_FLIGHT = "synchronizer.update_in_flight"
BATCHES = "explorer.max_inflight_batches"
SIZE = "buffer.train_batch_size"


def resolve_staleness(draft: Draft) -> None:
    """Fill the bound of `fully_async`, and check that the keys of a style fit it."""
    if not draft.explores:
        return
    style = draft.get(STYLE)
    _check_style(draft, style)
    if style == "fixed":
        return
    least = -(-_rollouts(draft) // max(1, draft.get(SIZE) - num_experts(draft))) - 1
    if draft.get(LIMIT) is None:
        if style == "fully_async":
            reason = "one more than the least, so that explorer and trainer work at the same time"
            draft.derive(LIMIT, least + 1, reason)
        return
    if draft.get(LIMIT) < least:
        draft.problem(
            "E1805",
            LIMIT,
            f"a batch of {_rollouts(draft)} rollouts is trained in steps of {draft.get(SIZE)}, so that its last are "
            f"{least} versions old; `{LIMIT}` is {draft.get(LIMIT)}",
            rule=f"at least {least}",
            involves=(SIZE, "buffer.batch_size", "algorithm.repeat_times"),
            suggestion=f"write `max_staleness: {least}`",
        )
    if draft.get("buffer.trainer_input.experience_buffer.replay_buffer.enable"):
        draft.problem(
            "E1805",
            LIMIT,
            f"`{LIMIT}` bounds the age of experiences that are trained once; replay_buffer trains them again later",
            involves=("buffer.trainer_input.experience_buffer.replay_buffer.enable",),
            suggestion="remove one of them",
        )


def _check_style(draft: Draft, style: str) -> None:
    if style == "fixed" and draft.get(LIMIT) is not None:
        draft.problem(
            "E1805",
            LIMIT,
            f"`{LIMIT}` does not fit sync_style fixed, whose schedule says how old experiences are",
            involves=(STYLE,),
            suggestion="use sync_offset, or another sync_style",
        )
    if style != "fully_async" and draft.is_given(BATCHES):
        draft.problem("W1902", BATCHES, f"`{BATCHES}` has no effect with sync_style {style}", suggestion="remove it")
    elif draft.is_given(BATCHES) and draft.get("deterministic") and draft.get(BATCHES) > 1:
        why = "with deterministic: true one batch is under way at a time"
        draft.problem("W1902", BATCHES, f"`{BATCHES}` has no effect: {why}", suggestion="remove it")
    if draft.get(IN_FLIGHT) and (style != "fully_async" or draft.get("deterministic")):
        why = "deterministic: true" if style == "fully_async" else f"sync_style {style}"
        draft.problem(
            "E1805",
            IN_FLIGHT,
            f"`{IN_FLIGHT}` does not fit {why}: the weights may change at any token",
            involves=(STYLE, "deterministic"),
            suggestion="use it with `sync_style: fully_async` and without deterministic",
        )


def _rollouts(draft: Draft) -> int:
    taskset = draft.get("buffer.explorer_input.taskset") or {}
    repeats = taskset.get("repeat_times") or draft.get("algorithm.repeat_times") or 1
    return int(draft.get("buffer.batch_size")) * int(repeats)
