"""Sizes of batches, numbers of steps, and the rhythm of explorer and trainer."""

from __future__ import annotations

import math
from typing import Any

from trinity.common.config.draft import Draft
from trinity.common.config.following import override
from trinity.common.config.keys import ACTOR, KEYS, Key, args_of, part_of
from trinity.common.config.mixture import batch_size_for, num_expert_rows
from trinity.common.config.rules.ranks import num_workers

SIZE = KEYS.buffer.train_batch_size
MANY_EPOCHS = 100_000
MANY_STEPS = 10_000_000


def expert_ratio(draft: Draft) -> float:
    """Return the share of expert rows in a training batch; 0 where the strategy mixes none, or the ratio is wrong."""
    if not is_built_in(draft, "mix"):
        return 0.0
    ratio: Any = (draft.get(args_of(KEYS.algorithm.sample_strategy)) or {}).get("expert_data_ratio")
    is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    return float(ratio) if is_number and 0 <= ratio < 1 else 0.0


def num_experts(draft: Draft) -> int:
    """Return the expert rows of a training batch."""
    try:
        return num_expert_rows(expert_ratio(draft), draft.get(SIZE))
    except ValueError:
        return 0


def train_batch_size(draft: Draft, num_rollouts: int) -> int:
    """Return the size of a training batch with that many rollouts."""
    return batch_size_for(num_rollouts, expert_ratio(draft))


def is_built_in(draft: Draft, name: str, registry: str = "sample_strategy") -> bool:
    """Return whether the algorithm uses the built-in component of that name, not a plugin's."""
    is_chosen = draft.get(part_of(KEYS.algorithm, registry)) == name
    return is_chosen and name not in draft.catalogue.plugins.get(registry, ())


def repeat_times(draft: Draft) -> int:
    """Return the rollouts of each task that is explored for training."""
    taskset = draft.config.buffer.explorer_input.taskset
    return (taskset and taskset.repeat_times) or draft.config.algorithm.repeat_times or 1


def num_explored(draft: Draft) -> int:
    """Return the rollouts of an explorer step."""
    return draft.config.buffer.batch_size * repeat_times(draft)


def num_trained(draft: Draft) -> int:
    """Return the rollouts of a training batch: its rows that are not an expert's."""
    return draft.get(SIZE) - num_experts(draft)


def resolve_batches(draft: Draft) -> None:
    """Fill train_batch_size and the optimizer's mini-batch."""
    repeat = draft.config.algorithm.repeat_times or 1
    if draft.get(SIZE) == 0:
        if draft.mode == "train" and not draft.is_given(KEYS.buffer.batch_size):
            draft.problem(
                "E1822",
                SIZE,
                f"mode train needs `{SIZE}`",
                involves=(KEYS.buffer.batch_size,),
                suggestion="write how many experiences a training step takes",
            )
        rollouts = draft.config.buffer.batch_size * repeat
        size = train_batch_size(draft, rollouts)
        experts = f", and {size - rollouts} expert rows" if size > rollouts else ""
        reason = f"batch_size ({draft.config.buffer.batch_size}) x repeat_times ({repeat}){experts}"
        draft.derive(SIZE, size, reason)
    override(draft, ACTOR.ppo_mini_batch_size, by=SIZE)


def check_micro_batches(draft: Draft) -> None:
    """Check that fixed micro-batches fill a batch."""
    micro, size = draft.filled(ACTOR.ppo_micro_batch_size_per_gpu), draft.get(SIZE)
    is_written = draft.is_given(ACTOR.ppo_micro_batch_size_per_gpu)
    has_ranks = num_workers(draft) > 1  # which share any number of experiences
    if draft.get(ACTOR.use_dynamic_bsz) or not is_written or size % micro == 0 or has_ranks:
        return
    below, above = size // micro * micro, -(-size // micro) * micro
    nearest = f"{below} or {above}" if below else str(above)
    draft.problem(
        "E1803",
        SIZE,
        f"`{SIZE}` ({size}) must be a multiple of workers (1) x ppo_micro_batch_size_per_gpu ({micro})",
        rule=f"multiple of {micro}",
        involves=(ACTOR.ppo_micro_batch_size_per_gpu,),
        suggestion=f"use {nearest}",
    )


def check_groups(draft: Draft) -> None:
    """Check that whole groups fill a batch, where the trainer compares the rollouts of a task with each other."""
    advantage, experts, size = draft.config.algorithm.advantage_fn, num_experts(draft), num_trained(draft)
    entry = draft.catalogue.entry("advantage_fn", advantage)
    if entry is None or not entry.compares or entry.scope != "trainer":
        return
    repeat = repeat_times(draft)
    if size % repeat == 0:
        return
    below, above = size // repeat * repeat, -(-size // repeat) * repeat
    less = f" less {experts} expert rows" if experts else ""
    below, above = (train_batch_size(draft, rollouts) if rollouts else 0 for rollouts in (below, above))
    draft.problem(
        "E1830",
        SIZE,
        f"`{SIZE}`{less} ({size}) must be a multiple of repeat_times ({repeat}): advantage_fn {advantage} compares all "
        "rollouts of a task in one training batch",
        rule=f"multiple of {repeat}",
        involves=(KEYS.algorithm.repeat_times, KEYS.algorithm.advantage_fn, KEYS.algorithm.algorithm_type),
        suggestion=f"use {below} or {above}" if below else f"use {above}",
    )


def resolve_steps(draft: Draft) -> None:
    """Fill the number of steps of both sides from the one that is written."""
    explorer, trainer = KEYS.buffer.total_steps, KEYS.trainer.total_steps
    explored, trained = draft.get(explorer), draft.get(trainer)
    if explored is not None and trained is not None:
        if draft.is_own(explorer) != draft.is_own(trainer):
            stale = trainer if draft.is_own(explorer) else explorer
            draft.put(stale, None)
        elif _in_trainer_steps(draft, explored) != trained:
            draft.problem(
                "E1825",
                trainer,
                f"`{trainer}` ({trained}) and {explorer} ({explored}) differ",
                involves=(explorer,),
                suggestion="keep one of them",
            )
            return
    explored, trained = draft.get(explorer), draft.get(trainer)
    if trained is None and explored is not None:
        draft.derive(trainer, _in_trainer_steps(draft, explored), _reason(draft, explorer))
    elif explored is None and trained is not None:
        draft.derive(explorer, _in_explorer_steps(draft, trained), _reason(draft, trainer))
    _check_length_of_run(draft)


def _reason(draft: Draft, source: Key[object]) -> str:
    theirs, ours = _rhythm(draft)
    if draft.mode != "both" or theirs == ours:
        return str(source)
    return f"{source}, with {ours} trainer steps for {theirs} explorer steps"


def _in_trainer_steps(draft: Draft, steps: int) -> int:
    if draft.mode != "both":
        return steps
    theirs, ours = _rhythm(draft)
    return max(1, steps * ours // theirs)


def _in_explorer_steps(draft: Draft, steps: int) -> int:
    if draft.mode != "both":
        return steps
    theirs, ours = _rhythm(draft)
    return max(1, -(-steps * theirs // ours))


def _rhythm(draft: Draft) -> tuple[int, int]:
    """Return explorer steps and the trainer steps that take as much: the intervals, where these are fixed."""
    if draft.config.synchronizer.sync_style == "fixed":
        return _intervals(draft)
    made, taken = num_explored(draft), max(1, num_trained(draft))
    shared = math.gcd(made, taken)
    return taken // shared, made // shared


def _intervals(draft: Draft) -> tuple[int, int]:
    section = KEYS.synchronizer
    return draft.filled(section.explorer_sync_interval), draft.filled(section.trainer_sync_interval)


def _check_length_of_run(draft: Draft) -> None:
    for key, limit in (
        (KEYS.buffer.total_epochs, MANY_EPOCHS),
        (KEYS.buffer.total_steps, MANY_STEPS),
        (KEYS.trainer.total_steps, MANY_STEPS),
    ):
        value = draft.get(key)
        if draft.is_given(key) and value is not None and value > limit:
            days = value / 86400
            draft.problem(
                "W1306",
                key,
                f"`{key}` is {value}: at one second a step this takes at least {days / 365:.1f} years",
                suggestion="is this number meant?",
            )


def check_intervals(draft: Draft) -> None:
    """Check that the explorer makes what the trainer takes between two synchronisations."""
    trains_on_data = draft.trains_on_dataset
    if draft.mode != "both" or draft.config.synchronizer.sync_style != "fixed" or trains_on_data:
        return
    theirs, ours = _intervals(draft)
    experts, size = num_experts(draft), num_trained(draft)
    made, taken = num_explored(draft) * theirs, size * ours
    is_at_most, is_at_least = _may_drop(draft), _uses_again(draft)
    if taken == made or (is_at_most and taken < made) or (is_at_least and taken > made):
        return
    relation = "at most" if is_at_most else "at least" if is_at_least else "equal"
    rollouts = f"({size + experts} - {experts} expert rows)" if experts else f"{size}"
    draft.problem(
        "E1824",
        SIZE,
        f"between two synchronisations the explorer makes {made} rollouts (batch_size "
        f"{draft.config.buffer.batch_size} x repeat_times {repeat_times(draft)} x explorer_sync_interval {theirs}) and "
        f"the trainer takes {taken} (train_batch_size {rollouts} x trainer_sync_interval {ours})",
        rule=f"the trainer's number is {relation} the explorer's",
        involves=(
            KEYS.buffer.batch_size,
            KEYS.algorithm.repeat_times,
            KEYS.synchronizer,
            KEYS.buffer.explorer_input.taskset,
            KEYS.algorithm.algorithm_type,
            KEYS.mode,
        ),
        suggestion=_interval_hint(draft, made, taken=taken, size=size, ours=ours),
    )


def _interval_hint(draft: Draft, made: int, *, taken: int, size: int, ours: int) -> str:
    if made % ours == 0:
        return f"write `train_batch_size: {train_batch_size(draft, made // ours)}`"
    if made % size == 0:
        return f"write `trainer_sync_interval: {made // size}`"
    return f"make {made} and {taken} equal"


def _may_drop(draft: Draft) -> bool:
    """Return whether experiences may be filtered out between explorer and trainer."""
    operators = draft.config.data_processor.experience_pipeline.operators
    arguments = draft.config.algorithm.advantage_fn_args or {}
    entries = [draft.catalogue.entry("operator", operator.name) for operator in operators]
    has_filter = any(entry is not None and entry.drops_experiences for entry in entries)
    return arguments.get("std_threshold") is not None or has_filter


def _uses_again(draft: Draft) -> bool:
    """Return whether a replay buffer adds rollouts of earlier steps to those that are new."""
    buffer = draft.config.buffer.trainer_input.experience_buffer
    return buffer is not None and buffer.replay_buffer.enable and buffer.replay_buffer.reuse_cooldown_time is not None
