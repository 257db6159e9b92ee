"""Rules of batch sizes, step counts and the explorer-trainer rhythm."""

from __future__ import annotations

from trinity.common.config import resolved
from trinity.common.config.following import override
from trinity.common.config.keys import ACTOR, CRITIC, KEYS, Key
from trinity.common.config.mixture import batch_size_for
from trinity.common.config.resolution import Resolution
from trinity.common.config.resolved import (
    has_critic,
    num_explored,
    num_workers,
    repeat_times,
    reuses_rollouts,
    rhythm,
    sync_intervals,
)

SIZE = KEYS.buffer.train_batch_size
MANY_EPOCHS = 100_000
MANY_STEPS = 10_000_000


def expert_ratio(resolution: Resolution) -> float:
    """Return the share of expert rows in a batch; 0 if unmixed or invalid."""
    return resolved.expert_ratio(resolution.config, mixes_experts=mixes_experts(resolution))


def num_experts(resolution: Resolution) -> int:
    """Return the expert rows of a training batch."""
    return resolved.num_experts(resolution.config, mixes_experts=mixes_experts(resolution))


def train_batch_size(resolution: Resolution, num_rollouts: int) -> int:
    """Return the size of a training batch with that many rollouts."""
    return batch_size_for(num_rollouts, expert_ratio(resolution))


def mixes_experts(resolution: Resolution) -> bool:
    """Return whether the sample strategy adds rows of an expert."""
    strategy = resolution.catalogue.entry("sample_strategy", resolution.get(KEYS.algorithm.sample_strategy))
    return strategy is not None and strategy.mixes_experts


def num_trained(resolution: Resolution) -> int:
    """Return the rollouts of a training batch, without the expert's rows."""
    return resolved.num_trained(resolution.config, mixes_experts=mixes_experts(resolution))


def resolve_batches(resolution: Resolution) -> None:
    """Fill train_batch_size and the optimizer's mini-batch."""
    repeat = resolution.config.algorithm.repeat_times or 1
    if resolution.get(SIZE) == 0:
        if resolution.mode == "train" and not resolution.is_given(KEYS.buffer.batch_size):
            resolution.problem(
                "E1822",
                SIZE,
                f"mode train needs `{SIZE}`",
                involves=(KEYS.buffer.batch_size,),
                suggestion="write how many experiences a training step takes",
            )
        rollouts = resolution.config.buffer.batch_size * repeat
        size = train_batch_size(resolution, rollouts)
        experts = f", and {size - rollouts} expert rows" if size > rollouts else ""
        reason = f"batch_size ({resolution.config.buffer.batch_size}) x repeat_times ({repeat}){experts}"
        resolution.derive(SIZE, size, reason)
    mini = KEYS.trainer.mini_batch_size
    if resolution.get(mini) is None:
        override(resolution, ACTOR.ppo_mini_batch_size, by=SIZE)
        return
    override(resolution, ACTOR.ppo_mini_batch_size, by=mini)
    size, whole = resolution.filled(mini), resolution.get(SIZE)
    if size > whole:
        resolution.problem(
            "E1945", mini, f"`{mini}` ({size}) must be at most {SIZE} ({whole})", rule=f"<= {whole}", involves=(SIZE,),
            suggestion="remove it: a training step has one optimizer step then",
        )  # fmt: skip


def check_micro_batches(resolution: Resolution) -> None:
    """Check that fixed micro-batches fill a batch."""
    micro, size = resolution.filled(ACTOR.ppo_micro_batch_size_per_gpu), resolution.get(SIZE)
    is_written = resolution.is_given(ACTOR.ppo_micro_batch_size_per_gpu)
    has_ranks = num_workers(resolution.config) > 1  # which share any number of experiences
    if resolution.get(ACTOR.use_dynamic_bsz) or not is_written or size % micro == 0 or has_ranks:
        return
    below, above = size // micro * micro, -(-size // micro) * micro
    nearest = f"{below} or {above}" if below else str(above)
    resolution.problem(
        "E1803",
        SIZE,
        f"`{SIZE}` ({size}) must be a multiple of workers (1) x ppo_micro_batch_size_per_gpu ({micro})",
        rule=f"multiple of {micro}",
        involves=(ACTOR.ppo_micro_batch_size_per_gpu,),
        suggestion=f"use {nearest}",
    )


def check_scope(resolution: Resolution) -> None:
    """Check that micro-batches are fixed where each has its own divisors."""
    key = KEYS.algorithm.loss_agg_scope
    if resolution.get(key) != "micro_batch":
        return
    loss, strategy = KEYS.algorithm.policy_loss_fn, KEYS.trainer.trainer_strategy
    name = resolution.get(loss)
    entry = resolution.catalogue.entry("policy_loss_fn", name)
    if entry is not None and entry.convention != "verl":
        _misfit_of_scope(resolution, loss, f"a policy_loss_fn of veRL (`verl_...`), got {name}", "remove it")
    by_tokens = KEYS.trainer.use_dynamic_bsz if resolution.get(ACTOR.use_dynamic_bsz) else None
    if by_tokens is None and has_critic(resolution.config) and resolution.get(CRITIC.use_dynamic_bsz):
        by_tokens = CRITIC.use_dynamic_bsz
    if by_tokens is not None:
        needs = "micro-batches of a fixed number of rows: else the lengths of other rows decide what a row counts"
        _misfit_of_scope(resolution, by_tokens, needs, f"write `{by_tokens}: false`, or remove it")
    if resolution.get(strategy) == "megatron":
        _misfit_of_scope(resolution, strategy, "trainer_strategy fsdp or fsdp2", "remove it")


def _misfit_of_scope(resolution: Resolution, other: Key[object], needs: str, suggestion: str) -> None:
    key = KEYS.algorithm.loss_agg_scope
    message = f"`{key}: micro_batch` needs {needs}"
    resolution.problem("E1958", key, message, involves=(other,), suggestion=suggestion)


def check_groups(resolution: Resolution) -> None:
    """Check that whole groups fill a batch.

    This matters if the trainer compares the rollouts of a task with each other.
    """
    advantage, experts, size = (
        resolution.config.algorithm.advantage_fn,
        num_experts(resolution),
        num_trained(resolution),
    )
    entry = resolution.catalogue.entry("advantage_fn", advantage)
    if entry is None or not entry.compares or entry.scope != "trainer":
        return
    repeat = repeat_times(resolution.config)
    if size % repeat == 0:
        return
    below, above = size // repeat * repeat, -(-size // repeat) * repeat
    less = f" less {experts} expert rows" if experts else ""
    below, above = (train_batch_size(resolution, rollouts) if rollouts else 0 for rollouts in (below, above))
    resolution.problem(
        "E1830",
        SIZE,
        f"`{SIZE}`{less} ({size}) must be a multiple of repeat_times ({repeat}): advantage_fn {advantage} compares all "
        "rollouts of a task in one training batch",
        rule=f"multiple of {repeat}",
        involves=(KEYS.algorithm.repeat_times, KEYS.algorithm.advantage_fn, KEYS.algorithm.algorithm_type),
        suggestion=f"use {below} or {above}" if below else f"use {above}",
    )


def resolve_steps(resolution: Resolution) -> None:
    """Fill the number of steps of explorer and trainer from the written one."""
    explorer, trainer = KEYS.buffer.total_steps, KEYS.trainer.total_steps
    explored, trained = resolution.get(explorer), resolution.get(trainer)
    if explored is not None and trained is not None:
        if resolution.is_own(explorer) != resolution.is_own(trainer):
            stale = trainer if resolution.is_own(explorer) else explorer
            resolution.put(stale, None)
        elif _in_trainer_steps(resolution, explored) != trained:
            resolution.problem(
                "E1825",
                trainer,
                f"`{trainer}` ({trained}) and {explorer} ({explored}) differ",
                involves=(explorer,),
                suggestion="keep one of them",
            )
            return
    explored, trained = resolution.get(explorer), resolution.get(trainer)
    if trained is None and explored is not None:
        resolution.derive(trainer, _in_trainer_steps(resolution, explored), _reason(resolution, explorer))
    elif explored is None and trained is not None:
        resolution.derive(explorer, _in_explorer_steps(resolution, trained), _reason(resolution, trainer))
    _check_length_of_run(resolution)


def _reason(resolution: Resolution, source: Key[object]) -> str:
    theirs, ours = _rhythm(resolution)
    if resolution.mode != "both" or theirs == ours:
        return str(source)
    return f"{source}, with {ours} training steps for {theirs} explore steps"


def _in_trainer_steps(resolution: Resolution, steps: int) -> int:
    if resolution.mode != "both":
        return steps
    theirs, ours = _rhythm(resolution)
    return max(1, steps * ours // theirs)


def _in_explorer_steps(resolution: Resolution, steps: int) -> int:
    if resolution.mode != "both":
        return steps
    theirs, ours = _rhythm(resolution)
    return max(1, -(-steps * theirs // ours))


def _rhythm(resolution: Resolution) -> tuple[int, int]:
    return rhythm(resolution.config, num_trained(resolution))


def _check_length_of_run(resolution: Resolution) -> None:
    for key, limit in (
        (KEYS.buffer.total_epochs, MANY_EPOCHS),
        (KEYS.buffer.total_steps, MANY_STEPS),
        (KEYS.trainer.total_steps, MANY_STEPS),
    ):
        value = resolution.get(key)
        if resolution.is_given(key) and value is not None and value > limit:
            days = value / 86400
            resolution.problem(
                "W1306",
                key,
                f"`{key}` is {value}: at one second a step this takes at least {days / 365:.1f} years",
                suggestion="is this number meant?",
            )


def check_intervals(resolution: Resolution) -> None:
    """Check that the explorer makes what the trainer takes between two syncs."""
    trains_on_data = resolution.trains_on_dataset
    if resolution.mode != "both" or resolution.config.synchronizer.sync_style != "fixed" or trains_on_data:
        return
    theirs, ours = sync_intervals(resolution.config)
    experts, size = num_experts(resolution), num_trained(resolution)
    repeat = repeat_times(resolution.config)
    made, taken = num_explored(resolution.config) * theirs, size * ours
    is_at_most, is_at_least = _may_drop(resolution), reuses_rollouts(resolution.config)
    if taken == made or (is_at_most and taken < made) or (is_at_least and taken > made):
        return
    relation = "at most" if is_at_most else "at least" if is_at_least else "equal"
    rollouts = f"({size + experts} - {experts} expert rows)" if experts else f"{size}"
    resolution.problem(
        "E1824",
        SIZE,
        f"between two synchronisations the explorer makes {made} rollouts (batch_size "
        f"{resolution.config.buffer.batch_size} x repeat_times {repeat} x explorer_sync_interval "
        f"{theirs}) and the trainer takes {taken} (train_batch_size {rollouts} x trainer_sync_interval {ours})",
        rule=f"the trainer's number is {relation} the explorer's",
        involves=(
            KEYS.buffer.batch_size,
            KEYS.algorithm.repeat_times,
            KEYS.synchronizer,
            KEYS.buffer.explorer_input.taskset,
            KEYS.algorithm.algorithm_type,
            KEYS.mode,
        ),
        suggestion=_interval_hint(resolution, made, taken=taken, size=size, ours=ours),
    )


def _interval_hint(resolution: Resolution, made: int, *, taken: int, size: int, ours: int) -> str:
    if made % ours == 0:
        return f"write `train_batch_size: {train_batch_size(resolution, made // ours)}`"
    if made % size == 0:
        return f"write `trainer_sync_interval: {made // size}`"
    return f"make {made} and {taken} equal"


def _may_drop(resolution: Resolution) -> bool:
    """Return whether experiences may be dropped before the trainer."""
    operators = resolution.config.data_processor.experience_pipeline.operators
    arguments = resolution.config.algorithm.advantage_fn_args or {}
    entries = [resolution.catalogue.entry("operator", operator.name) for operator in operators]
    has_filter = any(entry is not None and entry.drops_experiences for entry in entries)
    return arguments.get("std_threshold") is not None or has_filter
