"""Trial rollouts as data: prompts, responses, scores, tokens and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trinity.common.experience import Experience
from trinity.common.workflows.task import Task
from trinity.explorer.outcome import BatchResult, Completed, Failed, Outcome, RolloutResult, TimedOut
from trinity.explorer.recorded import RecordedCall

COMPLETED, FAILED, TIMED_OUT, REJECTED = "completed", "failed", "timed out", "rejected"


@dataclass(frozen=True)
class Rollout:
    """One rollout of a task.

    Attributes:
        row: number of the row in the taskset.
        task: number of the task in this call.
        run: number of the rollout among those of its task.
        outcome: `completed`, `failed`, `timed out` or `rejected`.
        reason: why it is not completed, with file and line of the user's code; empty if it is.
        experiences: what would be trained on; of a rollout that is not completed, the responses until then.
        seconds: duration of the rollout. A workflow may make all rollouts of a task in one call: then of all.
        model_seconds: seconds within it in which a call of a model was under way, those at the same time counted each.
        call_count: calls of models.
    """

    row: Any
    task: int
    run: int
    outcome: str
    reason: str
    experiences: tuple[Experience, ...] = field(repr=False)
    seconds: float
    model_seconds: float
    call_count: int

    @property
    def is_completed(self) -> bool:
        """Whether it would be trained on."""
        return self.outcome == COMPLETED

    @property
    def reward(self) -> float | None:
        """The reward of the last turn; None where there is none."""
        return self.experiences[-1].reward if self.is_completed and self.experiences else None

    def facts(self, *, has_tokens: bool = True) -> dict[str, Any]:
        """Return everything in JSON types."""
        return {
            "row": self.row,
            "task": self.task,
            "run": self.run,
            "outcome": self.outcome,
            "reason": self.reason,
            "reward": self.reward,
            "seconds": self.seconds,
            "model_seconds": self.model_seconds,
            "model_calls": self.call_count,
            "turns": [_turn(exp, has_tokens=has_tokens) for exp in self.experiences],
        }


def _turn(experience: Experience, *, has_tokens: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "prompt": experience.prompt_text,
        "response": experience.response_text,
        "reward": experience.reward,
        "metrics": {name: float(value) for name, value in experience.metrics.items()},
        "truncate_status": experience.truncate_status,
        "finish_reason": experience.info.get("finish_reason"),
        "prompt_length": experience.prompt_length,
        "response_length": experience.response_length,
        "trained_length": 0 if experience.action_mask is None else int(experience.action_mask.sum()),
    }
    if has_tokens:
        found["tokens"] = experience.tokens.tolist()
        found["action_mask"] = None if experience.action_mask is None else experience.action_mask.tolist()
        found["logprobs"] = None if experience.logprobs is None else experience.logprobs.tolist()
    return found


def rollout_of(result: RolloutResult, task: Task, calls: Sequence[Sequence[RecordedCall]]) -> Rollout:
    """Return the rollout that ended with `result`.

    Args:
        result: of the scheduler.
        task: the task that was attempted.
        calls: of each model, the rollout model first, in all rollouts.
    """
    own = [call for model in calls for call in model if call.is_of(result.task, result.run)]
    outcome = result.outcome
    given = (
        tuple(outcome.experiences) if isinstance(outcome, Completed) else _answers(calls[0], result.task, result.run)
    )
    return Rollout(
        row=task.index.get("index"),
        task=result.task,
        run=result.run,
        outcome=_named(outcome),
        reason=next(iter(BatchResult(1, [result]).reasons()), ""),
        experiences=given,
        seconds=result.time_s,
        model_seconds=sum(call.seconds for call in own),
        call_count=len(own),
    )


def _named(outcome: Outcome) -> str:
    if isinstance(outcome, Completed):
        return COMPLETED
    return FAILED if isinstance(outcome, Failed) else TIMED_OUT if isinstance(outcome, TimedOut) else REJECTED


def _answers(calls: Sequence[RecordedCall], task: int, run: int) -> tuple[Experience, ...]:
    found = []
    for call in calls:
        for sample, experience in zip(call.sample_ids, call.experiences, strict=True):
            if sample.split("/")[1:3] == [str(task), str(run)]:
                found.append(experience)
    return tuple(found)
