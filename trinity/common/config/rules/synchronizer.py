"""The synchronizer: transport and rhythm of new weights, and how old an experience may get before it is trained."""

from __future__ import annotations

from trinity.common.config.draft import Draft
from trinity.common.config.keys import EXPERIENCES, KEYS, ROLLOUT_MODEL, Key, path_of
from trinity.common.config.rules.batches import SIZE, num_explored, num_trained

SECTION = KEYS.synchronizer
METHOD = SECTION.sync_method
RATIO = KEYS.explorer.over_rollout.ratio
DYNAMIC = KEYS.explorer.dynamic_timeout.enable
DELTA = SECTION.checkpoint_delta
STYLE = SECTION.sync_style
LIMIT = SECTION.max_staleness
IN_FLIGHT = SECTION.update_in_flight
BATCHES = KEYS.explorer.max_inflight_batches


def resolve_synchronizer(draft: Draft) -> None:
    """Fill the transport and the intervals."""
    for key in (SECTION.explorer_sync_interval, SECTION.trainer_sync_interval):
        if draft.get(key) is None:
            draft.derive(key, draft.config.synchronizer.sync_interval, "sync_interval")
    _resolve_method(draft)
    if draft.get(DELTA) and draft.get(METHOD) != "checkpoint":
        method = draft.get(METHOD)
        draft.problem("W1902", DELTA, f"`{DELTA}` has no effect with sync_method {method}", suggestion="remove it")
    written = draft.tree.get(path_of(METHOD)) if draft.is_given(METHOD) else None
    if draft.config.model.lora_configs and written in ("nccl", "online"):
        draft.problem(
            "E1812",
            METHOD,
            f"`{METHOD}: nccl` sends the trained tensors to engines on other devices, and with model.lora_configs "
            "these are an adapter's; the engine takes merged weights from memory or from files",
            involves=(KEYS.model.lora_configs,),
            suggestion="write `sync_method: auto` or `sync_method: checkpoint`",
        )
    _check_pacing(draft)


def _check_pacing(draft: Draft) -> None:
    """Check that nobody goes on without tasks that somebody waits for, and that timing decides nothing it may not."""
    leaves_tasks = draft.config.explorer.over_rollout.ratio > 0
    if leaves_tasks and draft.config.synchronizer.sync_style == "fixed":
        draft.problem(
            "E1805",
            KEYS.explorer.over_rollout.ratio,
            "`explorer.over_rollout.ratio` > 0 does not fit sync_style fixed, which waits for every task",
            involves=(KEYS.synchronizer.sync_style,),
            suggestion="write `ratio: 0` or another sync_style",
        )
    timed: dict[Key[object], bool] = {RATIO: leaves_tasks, DYNAMIC: draft.get(DYNAMIC)}
    for key, is_used in timed.items():
        if is_used and draft.config.deterministic and draft.explores:
            draft.problem(
                "E1805",
                key,
                f"with `deterministic: true` no rollout may depend on how long others took, as it does with {key}",
                involves=(KEYS.deterministic,),
                suggestion=f"remove `{str(key).removeprefix('explorer.')}`, or write `deterministic: false`",
            )


def _resolve_method(draft: Draft) -> None:
    method = draft.get(METHOD)
    if draft.mode == "both":
        if method == "auto" or (method == "nccl" and not _has_engines_apart(draft)):
            draft.derive(
                METHOD,
                "memory",
                "the memory of the run's processes"
                if method == "auto"
                else "nccl between parts of one process is a copy in memory",
            )
        return
    if method in ("nccl", "memory") and draft.is_own(METHOD) and _mode_is_written_with(draft):
        draft.problem(
            "E1804",
            METHOD,
            f"`{METHOD}: {method}` needs explorer and trainer in one run, but mode is {draft.mode}",
            rule="checkpoint",
            suggestion="write `sync_method: checkpoint`",
        )
    elif method != "checkpoint":
        draft.derive(METHOD, "checkpoint", f"mode {draft.mode} meets the other side in checkpoints")


def _has_engines_apart(draft: Draft) -> bool:
    """Return whether engines have processes of their own."""
    engine = draft.get(ROLLOUT_MODEL)
    return engine.engine_type != "torch" or engine.engine_num != 1 or draft.config.cluster.runtime != "local"


def _mode_is_written_with(draft: Draft) -> bool:
    """Return whether the transport was written for this mode: in the same file, or in this very stage."""
    return draft.stage_name is None or draft.is_own(METHOD)


def resolve_evaluation(draft: Draft) -> None:
    """Round eval_interval to the synchronisation rhythm, at which the weights change."""
    interval = draft.config.explorer.eval_interval
    rhythm = draft.filled(SECTION.explorer_sync_interval)
    if interval is None or not draft.explores or interval % rhythm == 0:
        return
    rounded = max(rhythm, interval // rhythm * rhythm)
    draft.derive(KEYS.explorer.eval_interval, rounded, f"a multiple of explorer_sync_interval ({rhythm})")


def resolve_staleness(draft: Draft) -> None:
    """Fill the bound of `fully_async`, and check that the keys of a style fit it."""
    if not draft.explores:
        return
    style = draft.get(STYLE)
    _check_style(draft, style)
    if style == "fixed":
        return
    explored, limit = num_explored(draft), draft.get(LIMIT)
    least = -(-explored // max(1, num_trained(draft))) - 1
    if limit is None:
        if style == "fully_async":
            reason = "one more than the least, so that explorer and trainer work at the same time"
            draft.derive(LIMIT, least + 1, reason)
        return
    if limit < least:
        draft.problem(
            "E1805",
            LIMIT,
            f"a batch of {explored} rollouts is trained in steps of {draft.get(SIZE)}, so that its last are "
            f"{least} versions old; `{LIMIT}` is {limit}",
            rule=f"at least {least}",
            involves=(SIZE, KEYS.buffer.batch_size, KEYS.algorithm.repeat_times),
            suggestion=f"write `max_staleness: {least}`",
        )
    if draft.get(EXPERIENCES.replay_buffer.enable):
        draft.problem(
            "E1805",
            LIMIT,
            f"`{LIMIT}` bounds the age of experiences that are trained once; replay_buffer trains them again later",
            involves=(EXPERIENCES.replay_buffer.enable,),
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
    elif draft.is_given(BATCHES) and draft.config.deterministic and draft.get(BATCHES) > 1:
        why = "with deterministic: true one batch is under way at a time"
        draft.problem("W1902", BATCHES, f"`{BATCHES}` has no effect: {why}", suggestion="remove it")
    if draft.get(IN_FLIGHT) and (style != "fully_async" or draft.config.deterministic):
        why = "deterministic: true" if style == "fully_async" else f"sync_style {style}"
        draft.problem(
            "E1805",
            IN_FLIGHT,
            f"`{IN_FLIGHT}` does not fit {why}: the weights may change at any token",
            involves=(STYLE, KEYS.deterministic),
            suggestion="use it with `sync_style: fully_async` and without deterministic",
        )
