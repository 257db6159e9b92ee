"""Rules of the synchronizer: transport, rhythm and maximum staleness."""

from __future__ import annotations

import math

from trinity.common.config.following import fill_defaults, note_idle
from trinity.common.config.keys import EXPERIENCES, KEYS, ROLLOUT_MODEL, Key, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.resolved import num_explored, publication_interval
from trinity.common.config.rules.batches import SIZE, num_trained

SECTION = KEYS.synchronizer
METHOD = SECTION.sync_method
RATIO = KEYS.explorer.over_rollout.ratio
DYNAMIC = KEYS.explorer.dynamic_timeout.enable
STYLE = SECTION.sync_style
LIMIT = SECTION.max_staleness
IN_FLIGHT = SECTION.update_in_flight
BATCHES = KEYS.explorer.max_inflight_batches


def resolve_synchronizer(resolution: Resolution) -> None:
    """Fill the transport and the intervals."""
    fill_defaults(resolution, SECTION)
    _resolve_method(resolution)
    note_idle(resolution, SECTION, is_written=lambda key: bool(resolution.get(key)))
    written = resolution.tree.get(path_of(METHOD)) if resolution.is_given(METHOD) else None
    if resolution.mode == "both" and resolution.config.model.lora_configs and written in ("nccl", "online"):
        resolution.problem(
            "W1812",
            METHOD,
            f"`{METHOD}: nccl` sends the trained tensors to engines on other devices, and with model.lora_configs "
            "these are an adapter's: the engine takes the merged weights, with the same numbers, from memory",
            involves=(KEYS.model.lora_configs,),
            suggestion="write `sync_method: auto` or `sync_method: checkpoint`",
        )
        resolution.derive(METHOD, "memory", "merged weights of an adapter do not travel by nccl")
    _check_pacing(resolution)


def _check_pacing(resolution: Resolution) -> None:
    """Check that pacing keys fit the sync style and `deterministic`.

    Style `fixed` waits for every task. With `deterministic: true`, no rollout may depend on the time of others.
    """
    leaves_tasks = resolution.config.explorer.over_rollout.ratio > 0
    if leaves_tasks and resolution.config.synchronizer.sync_style == "fixed":
        resolution.problem(
            "E1805",
            KEYS.explorer.over_rollout.ratio,
            "`explorer.over_rollout.ratio` > 0 does not fit sync_style fixed, which waits for every task",
            involves=(KEYS.synchronizer.sync_style,),
            suggestion="write `ratio: 0` or another sync_style",
        )
    timed: dict[Key[object], bool] = {RATIO: leaves_tasks, DYNAMIC: resolution.get(DYNAMIC)}
    for key, is_used in timed.items():
        if is_used and resolution.config.deterministic and resolution.explores:
            resolution.problem(
                "E1805",
                key,
                f"with `deterministic: true` no rollout may depend on how long others took, as it does with {key}",
                involves=(KEYS.deterministic,),
                suggestion=f"remove `{str(key).removeprefix('explorer.')}`, or write `deterministic: false`",
            )


def _resolve_method(resolution: Resolution) -> None:
    method = resolution.get(METHOD)
    if resolution.mode == "both":
        if method == "auto" or (method == "nccl" and not _has_engines_apart(resolution)):
            resolution.derive(
                METHOD,
                "memory",
                "the memory of the run's processes"
                if method == "auto"
                else "nccl between parts of one process is a copy in memory",
            )
        return
    if method in ("nccl", "memory") and resolution.is_own(METHOD) and _mode_is_written_with(resolution):
        resolution.problem(
            "W1804",
            METHOD,
            f"`{METHOD}: {method}` needs explorer and trainer in one run, but mode is {resolution.mode}: weights go "
            "through checkpoints",
            rule="checkpoint",
            suggestion="write `sync_method: checkpoint`",
        )
    if method != "checkpoint":
        resolution.derive(METHOD, "checkpoint", f"mode {resolution.mode} meets the other side in checkpoints")


def _has_engines_apart(resolution: Resolution) -> bool:
    """Return whether engines have processes of their own."""
    engine = resolution.get(ROLLOUT_MODEL)
    return engine.engine_type != "torch" or engine.engine_num != 1 or resolution.config.cluster.runtime != "local"


def _mode_is_written_with(resolution: Resolution) -> bool:
    """Return whether the transport was written together with the mode."""
    return resolution.stage_name is None or resolution.is_own(METHOD)


def resolve_evaluation(resolution: Resolution) -> None:
    """Round eval_interval to the sync interval, at which weights change."""
    interval = resolution.config.explorer.eval_interval
    rhythm = resolution.filled(SECTION.explorer_sync_interval)
    if interval is None or not resolution.explores or interval % rhythm == 0:
        return
    rounded = max(rhythm, interval // rhythm * rhythm)
    resolution.derive(KEYS.explorer.eval_interval, rounded, f"a multiple of explorer_sync_interval ({rhythm})")


def resolve_staleness(resolution: Resolution) -> None:
    """Fill the bound of `fully_async`; check that the keys fit the style."""
    if not resolution.explores:
        return
    style = resolution.get(STYLE)
    _check_style(resolution, style)
    if style == "fixed":
        return
    explored, limit = num_explored(resolution.config), resolution.get(LIMIT)
    steps = -(-explored // max(1, num_trained(resolution)))
    # A batch is trained in `steps` steps, and begins up to `interval - gcd` steps after the newest version.
    interval = publication_interval(resolution.config)
    least = steps - 1 + interval - math.gcd(interval, steps)
    if limit is None:
        if style == "fully_async":
            reason = "one more than the least, so that explorer and trainer work at the same time"
            resolution.derive(LIMIT, least + 1, reason)
        return
    if steps - 1 <= limit < least:
        resolution.problem(
            "E1805",
            LIMIT,
            f"mode {resolution.mode} gets weights every {interval} training steps, so that experiences are up to "
            f"{least} versions old when they are trained; `{LIMIT}` is {limit}, which would leave training steps empty",
            rule=f"at least {least}",
            involves=(SECTION.trainer_sync_interval, SECTION.sync_interval),
            suggestion=f"write `max_staleness: {least}`, or a smaller trainer_sync_interval",
        )
    elif limit < least:
        least = steps - 1
        resolution.problem(
            "E1805",
            LIMIT,
            f"a batch of {explored} rollouts is trained in steps of {resolution.get(SIZE)}, so that its last are "
            f"{least} versions old; `{LIMIT}` is {limit}",
            rule=f"at least {least}",
            involves=(SIZE, KEYS.buffer.batch_size, KEYS.algorithm.repeat_times),
            suggestion=f"write `max_staleness: {least}`",
        )
    if resolution.get(EXPERIENCES.replay_buffer.enable):
        resolution.problem(
            "E1805",
            LIMIT,
            f"`{LIMIT}` bounds the age of experiences that are trained once; replay_buffer trains them again later",
            involves=(EXPERIENCES.replay_buffer.enable,),
            suggestion="remove one of them",
        )


def _check_style(resolution: Resolution, style: str) -> None:
    if style == "fixed" and resolution.get(LIMIT) is not None:
        resolution.problem(
            "E1805",
            LIMIT,
            f"`{LIMIT}` does not fit sync_style fixed, whose schedule says how old experiences are",
            involves=(STYLE,),
            suggestion="use sync_offset, or another sync_style",
        )
    note_idle(resolution, KEYS.explorer, but=(ROLLOUT_MODEL,), is_written=resolution.is_given)
    is_ahead = style == "fully_async" and resolution.is_given(BATCHES) and resolution.get(BATCHES) > 1
    if is_ahead and resolution.config.deterministic:
        why = "with deterministic: true one batch is under way at a time"
        resolution.problem("W1902", BATCHES, f"`{BATCHES}` has no effect: {why}", suggestion="remove it")
    if resolution.get(IN_FLIGHT) and (style != "fully_async" or resolution.config.deterministic):
        why = "deterministic: true" if style == "fully_async" else f"sync_style {style}"
        resolution.problem(
            "E1805",
            IN_FLIGHT,
            f"`{IN_FLIGHT}` does not fit {why}: the weights may change at any token",
            involves=(STYLE, KEYS.deterministic),
            suggestion="use it with `sync_style: fully_async` and without deterministic",
        )
