"""Outcomes of a rollout: typed, never an invented reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trinity.buffer.store.fates import ISSUED, failed
from trinity.common.experience import Experience
from trinity.common.rewards.reward_fn import RewardError, RewardTimeoutError

# Of `Experience.info`: what the model of a rollout counted; see `Turns.foreign` and `History.dropped`.
FOREIGN_TURNS, DROPPED_CALLS = "foreign_turns", "dropped_calls"


@dataclass(frozen=True)
class Completed:
    """The run ended and its rewards are usable.

    Attributes:
        experiences: those of the run, in the order of their turns.
    """

    experiences: list[Experience]


@dataclass(frozen=True)
class Failed:
    """The workflow raised, or did not return a list of experiences.

    Attributes:
        error: type, message and place of the error.
    """

    error: str


@dataclass(frozen=True)
class OverMemory(Failed):
    """The rollout's process took more memory than it may, and was killed.

    Attributes:
        error: how much, and the limit.
    """


@dataclass(frozen=True)
class TimedOut:
    """The rollout reached its deadline; its thread was abandoned.

    Attributes:
        deadline_s: the deadline, in seconds.
        setting: the key that bounds it.
    """

    deadline_s: float
    setting: str = "explorer.max_timeout"


@dataclass(frozen=True)
class Rejected:
    """The run ended and its reward cannot be used, or could not be computed.

    Attributes:
        reason: what is wrong with it.
    """

    reason: str


@dataclass(frozen=True)
class RewardFailed(Rejected):
    """The reward could not be computed.

    Attributes:
        reason: what the reward function says.
    """


@dataclass(frozen=True)
class RewardTimedOut(Rejected):
    """The reward function was stopped at its deadline.

    Attributes:
        reason: the deadline, and the key that bounds it.
    """


def unscored(error: RewardError) -> Rejected:
    """Return the outcome of a run that has no reward because of `error`."""
    kind = RewardTimedOut if isinstance(error, RewardTimeoutError) else RewardFailed
    return kind(f"reward: {error}")


Outcome = Completed | Failed | TimedOut | Rejected
_KINDS: dict[type[Any], str] = {  # the first that fits
    OverMemory: "over_memory",
    Failed: "workflow",
    TimedOut: "timeout",
    RewardTimedOut: "reward_timeout",
    RewardFailed: "reward_error",
    Rejected: "rejected",
}


@dataclass(frozen=True)
class RolloutResult:
    """Final outcome of one run of one task.

    Attributes:
        task: index of the task in the batch.
        run: number of the run.
        outcome: of the last attempt.
        time_s: duration of the last attempt in seconds; an attempt that did several runs counts in each.
    """

    task: int
    run: int
    outcome: Outcome
    time_s: float


@dataclass
class BatchResult:
    """Outcomes of all runs of a batch of tasks.

    Attributes:
        task_count: number of tasks in the batch.
        results: one a run, sorted by task and run.
        baselines: greedy run of each task, which is not trained on; None where none was asked for. The runs of a task
            whose greedy run is not completed do not count as completed: they cannot be compared with it.
        retry_count: attempts after the first ones.
        abandoned_count: attempts left behind because they did not end in time.
        restart_count: runners' processes that were replaced.
        issued_run_count: runs that were begun; retries are not counted, nor are greedy runs.
        unfinished_task_count: tasks that were not waited for (`explorer.over_rollout`).
        unfinished_run_count: runs of these tasks that are left out.
        wall_s: duration of the batch in seconds.
    """

    task_count: int
    results: list[RolloutResult] = field(default_factory=list)
    baselines: dict[int, RolloutResult] | None = None
    retry_count: int = 0
    abandoned_count: int = 0
    restart_count: int = 0
    issued_run_count: int = 0
    unfinished_task_count: int = 0
    unfinished_run_count: int = 0
    wall_s: float = 0.0

    @property
    def completed(self) -> list[tuple[RolloutResult, list[Experience]]]:
        """The completed runs with their experiences."""
        return [
            (r, r.outcome.experiences)
            for r in self.results
            if isinstance(r.outcome, Completed) and (self.baselines is None or r.task in self.completed_baselines)
        ]

    @property
    def completed_baselines(self) -> dict[int, list[Experience]]:
        """The experiences of completed greedy runs by task, in task order."""
        runs = sorted((self.baselines or {}).items())
        return {task: run.outcome.experiences for task, run in runs if isinstance(run.outcome, Completed)}

    @property
    def experiences(self) -> list[Experience]:
        """The experiences of all completed runs, sorted by task, run and turn."""
        return [e for _, experiences in self.completed for e in experiences]

    @property
    def finished_tasks(self) -> set[int]:
        """Indices of the tasks with at least one completed run."""
        return {r.task for r, _ in self.completed}

    @property
    def fates(self) -> Counter[str]:
        """How many runs were `issued`, and which `failed/<kind>`."""
        counts = Counter({ISSUED: self.issued_run_count, failed("unfinished"): self.unfinished_run_count})
        completed = {(run.task, run.run) for run, _ in self.completed}
        counts.update(failed(_kind(run.outcome)) for run in self.results if (run.task, run.run) not in completed)
        return +counts

    def count(self, *kinds: type[Outcome]) -> int:
        """Return the number of runs whose outcome is one of `kinds`."""
        return sum(isinstance(r.outcome, kinds) for r in self.results)

    def reasons(self) -> list[str]:
        """Return why runs did not complete, the most common reason first."""
        runs = [*self.results, *(self.baselines or {}).values()]
        texts = [text for r in runs if (text := reason_of(r.outcome))]
        return sorted(set(texts), key=lambda text: (-texts.count(text), text))


def _kind(outcome: Outcome) -> str:
    """Return the kind of a failure.

    A completed run that counts as failed has no greedy run to compare it with.
    """
    for kind, name in _KINDS.items():
        if isinstance(outcome, kind):
            return name
    return "baseline"


def summed(parts: Sequence[BatchResult]) -> BatchResult:
    """Return the results of batches as those of one.

    The task indices of the parts must differ: they are kept.
    """
    whole = BatchResult(0, baselines=None if parts[0].baselines is None else {})
    for part in parts:
        whole.results += part.results
        if whole.baselines is not None:
            whole.baselines |= part.baselines or {}
        whole.task_count += part.task_count
        whole.issued_run_count += part.issued_run_count
        whole.retry_count += part.retry_count
        whole.abandoned_count += part.abandoned_count
        whole.restart_count += part.restart_count
        whole.unfinished_task_count += part.unfinished_task_count
        whole.unfinished_run_count += part.unfinished_run_count
        whole.wall_s += part.wall_s
    return whole


def joined(parts: Sequence[BatchResult]) -> BatchResult:
    """Return the results of single tasks as those of one batch.

    The tasks are numbered in the order of `parts`; the duration is left at 0.
    """
    whole = BatchResult(len(parts), baselines=None if parts[0].baselines is None else {})
    for index, part in enumerate(parts):
        whole.results += [replace(run, task=index) for run in part.results]
        for run in (part.baselines or {}).values():
            assert whole.baselines is not None, "all of a batch have baselines, or none"
            whole.baselines[index] = replace(run, task=index)
        whole.issued_run_count += part.issued_run_count
        whole.retry_count += part.retry_count
        whole.abandoned_count += part.abandoned_count
        whole.restart_count += part.restart_count
    return whole


def reason_of(outcome: Outcome) -> str:
    """Return why a run did not complete; empty if it did."""
    match outcome:
        case Failed(error):
            return error
        case TimedOut(deadline_s, setting):
            return f"no result within {deadline_s:g} s ({setting})"
        case Rejected(reason):
            return reason
    return ""


def is_retried(outcomes: Iterable[Outcome]) -> bool:
    """Return whether an attempt with these outcomes is made again.

    It is retried if no run completed and a run failed or timed out. A rejected reward would only repeat.
    """
    outcomes = list(outcomes)
    if any(isinstance(o, Completed) for o in outcomes):
        return False
    return any(isinstance(o, Failed | TimedOut) for o in outcomes)
