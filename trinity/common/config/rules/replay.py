"""The replay buffer and the capacity of the queue between explorer and trainer."""

from __future__ import annotations

from trinity.common.config.draft import Draft, path_of
from trinity.common.config.rules.batches import num_experts
from trinity.common.config.rules.buffers import OUTPUT
from trinity.common.config.rules.components import check_kinds, check_name, merge_arguments

REPLAY = f"{OUTPUT}.replay_buffer"
FUNCTION = f"{REPLAY}.priority_fn"
COOLDOWN = f"{REPLAY}.reuse_cooldown_time"


def check_replay(draft: Draft) -> None:
    """Check name and arguments of the priority function, and that a queue of this capacity can feed the trainer."""
    if draft.get(OUTPUT) is None:
        return
    if draft.get(f"{REPLAY}.enable"):
        _check_replay(draft)
    elif draft.is_own(REPLAY) and any(
        draft.is_given(f"{REPLAY}.{name}") for name in ("priority_fn", "priority_fn_args")
    ):
        draft.problem("W1902", REPLAY, f"`{REPLAY}` has no effect: enable is false", suggestion="write `enable: true`")
    if not draft.trains_on_dataset:
        _check_capacity(draft)


def _check_replay(draft: Draft) -> None:
    kind = draft.get(f"{OUTPUT}.storage_type")
    if kind != "queue":
        draft.problem(
            "E1867",
            f"{REPLAY}.enable",
            f"`{REPLAY}` uses the experiences of a queue again, and storage_type is {kind}",
            rule="storage_type queue",
            involves=(f"{OUTPUT}.storage_type", "algorithm.algorithm_type"),
            suggestion="write `storage_type: queue`",
        )
        return
    function = draft.get(FUNCTION)
    if check_name(draft, FUNCTION, "priority_fn", function):
        entry = draft.catalogue.entry("priority_fn", function)
        known, written = dict(entry.args) if entry else {}, draft.get(f"{FUNCTION}_args") or {}
        merge_arguments(draft, FUNCTION, function, known, entry=entry)
        check_kinds(draft, FUNCTION, function, known, written=written)
        _check_ranges(draft)
    cooldown = draft.get(COOLDOWN)
    if cooldown is None and path_of(COOLDOWN) not in draft.broken:
        draft.problem(
            "W1902",
            f"{REPLAY}.enable",
            f"`{REPLAY}.enable` has no effect: without reuse_cooldown_time no experience is used again",
            suggestion="write `reuse_cooldown_time: 0`, or the pause in seconds",
        )
    elif cooldown and draft.get("deterministic"):
        draft.problem(
            "E1868",
            COOLDOWN,
            f"`{COOLDOWN}` is {cooldown:g} s: a pause depends on the machine's speed, a deterministic run does not",
            rule="0 with deterministic: true",
            involves=("deterministic",),
            suggestion="write `reuse_cooldown_time: 0`",
        )


def _check_ranges(draft: Draft) -> None:
    arguments = draft.get(f"{FUNCTION}_args")
    for name, least in (("use_count_limit", 1), ("sigma", 0), ("decay", 0)):
        value = arguments.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value < least:
            draft.problem(
                "E1302",
                f"{FUNCTION}_args.{name}",
                f"`{FUNCTION}_args.{name}` must be >= {least}, got {value}",
                rule=f">= {least}",
                suggestion="remove it: the default is used",
            )


def _check_capacity(draft: Draft) -> None:
    """A queue that cannot hold what the trainer waits for would give it incomplete batches only."""
    capacity, size = draft.get(f"{OUTPUT}.capacity"), draft.get("buffer.train_batch_size") - num_experts(draft)
    if draft.get(f"{OUTPUT}.storage_type") != "queue":
        if draft.is_own(f"{OUTPUT}.capacity"):
            draft.problem("W1902", f"{OUTPUT}.capacity", f"`{OUTPUT}.capacity` has no effect: only a queue has one")
        return
    if capacity >= size:
        return
    draft.problem(
        "E1865",
        f"{OUTPUT}.capacity",
        f"`{OUTPUT}.capacity` ({capacity} experiences) is less than the {size} rollouts of a training step",
        rule=f">= {size}",
        involves=("buffer.train_batch_size", "buffer.batch_size", "algorithm.repeat_times"),
        suggestion=f"write `capacity: {4 * size}`",
    )
