"""Two passes over the same tasks with the same policy, compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trinity.launch.trial.rollouts import Rollout

SHOWN = 60


def differences(first: Sequence[Rollout], second: Sequence[Rollout]) -> Iterator[str]:
    """Yield in which rollouts two passes differ, and where.

    A rollout that failed in both is the same: why it failed is said elsewhere.
    """
    for one, other in zip(first, second, strict=True):
        said = _difference(one, other)
        if said:
            yield f"task {one.task} (row {one.row}), rollout {one.run}: {said}"


def _difference(one: Rollout, other: Rollout) -> str:
    if one.outcome != other.outcome:
        return f"{one.outcome}, then {other.outcome}{_because(one)}{_because(other)}"
    if not one.is_completed:
        return ""
    if len(one.experiences) != len(other.experiences):
        return f"{len(one.experiences)} experiences, then {len(other.experiences)}"
    for number, (before, after) in enumerate(zip(one.experiences, other.experiences, strict=True)):
        turn = f" of turn {number}" if len(one.experiences) > 1 else ""
        prompts = (before.prompt_text or "", after.prompt_text or "")
        if before.tokens[: before.prompt_length].tolist() != after.tokens[: after.prompt_length].tolist():
            return f"the prompt{turn} differs, {_excerpts(*prompts)}"
        if before.reward != after.reward:
            return f"the reward{turn} is {before.reward:g}, then {after.reward:g}"
        if before.metrics != after.metrics:
            return f"the metrics{turn} are {before.metrics}, then {after.metrics}"
    return ""


def _because(rollout: Rollout) -> str:
    return f" ({rollout.reason})" if rollout.reason else ""


def _excerpts(one: str, other: str) -> str:
    same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    begin = max(same - SHOWN // 3, 0)
    return f"{one[begin : begin + SHOWN]!r}, then {other[begin : begin + SHOWN]!r}"
