"""Evaluation: several runs of every task, with best and worst of k."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from trinity.common.errors import WorkflowError
from trinity.common.workflows.task import Task
from trinity.explorer.metrics import detailed_summary, outcome_counts, time_metrics, truncation_counts, values_by_task
from trinity.explorer.outcome import BatchResult
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.explorer.answers import AnswerFiles
    from trinity.explorer.scheduler import Scheduler

logger = get_logger("explorer")

EVAL = "eval"
NUM_BOOTSTRAP = 1000
BOOTSTRAP_SEED = 42


@dataclass(frozen=True)
class EvalTaskset:
    """Tasks of one evaluation.

    Attributes:
        name: of the taskset, the second part of the metrics' names.
        tasks: all of them, in order.
        repeat_times: runs of each task.
        fingerprint: of the rows.
    """

    name: str
    tasks: Sequence[Task]
    repeat_times: int
    fingerprint: str = ""


def subset_sizes(num_runs: int) -> list[int]:
    """Return the k of best@k and worst@k; empty for one run.

    They are 2, 4, 8, ... below `num_runs`, and `num_runs` itself.
    """
    if num_runs < 2:
        return []
    powers = []
    k = 2
    while k < num_runs:
        powers.append(k)
        k *= 2
    return [*powers, num_runs]


@lru_cache(maxsize=256)
def _draws(num_values: int, k: int) -> np.ndarray:
    """Return 1000 draws of `k` indices with replacement.

    Tasks with equally many values share the same draws.
    """
    return np.random.RandomState(BOOTSTRAP_SEED).choice(num_values, size=(NUM_BOOTSTRAP, k), replace=True)


def eval_metrics(
    values: Mapping[int, Sequence[float]], num_runs: int, *, is_detailed: bool = False
) -> dict[str, float]:
    """Return the evaluation metrics, averaged over the tasks.

    They are `mean@n`, and for several runs also `std@n`, `best@k` and `worst@k`.

    For several tasks there is `stderr@n`, the standard error of `mean@n`: tasks are the sample, not their runs.
    The standard deviation is of the population; best and worst of k are bootstrap means (1000 draws with replacement,
    seed 42). A task that lost runs enters with those it has.

    Args:
        values: task -> one value a run.
        num_runs: n, the number of runs asked for.
        is_detailed: also `<what>/{mean,max,min,std,p10,p50,p90}` over the tasks, of each but `stderr@n`.
    """
    rows = [np.asarray(v, dtype=np.float64) for _, v in sorted(values.items()) if len(v)]
    if not rows:
        return {}
    of_tasks = {f"mean@{num_runs}": np.asarray([row.mean() for row in rows])}
    if num_runs > 1:
        of_tasks[f"std@{num_runs}"] = np.asarray([row.std() for row in rows])
    for k in subset_sizes(num_runs):
        drawn = [row[_draws(len(row), k)] for row in rows]
        of_tasks[f"best@{k}"] = np.asarray([d.max(axis=1).mean() for d in drawn])
        of_tasks[f"worst@{k}"] = np.asarray([d.min(axis=1).mean() for d in drawn])
    metrics = {what: float(each.mean()) for what, each in of_tasks.items()}
    means = of_tasks[f"mean@{num_runs}"]
    if len(means) > 1:
        metrics[f"stderr@{num_runs}"] = float(means.std(ddof=1) / np.sqrt(len(means)))
    for what, each in of_tasks.items() if is_detailed else ():
        metrics |= detailed_summary(what, each.tolist())
    return metrics


class Evaluator:
    """Evaluates the model that the engine serves.

    Args:
        tasksets: what to evaluate.
        scheduler: runs the tasks.
        answers: where they are kept, by the first part of the metrics' names; those of others are not.
        is_detailed: with the distribution of each metric over the tasks.
    """

    def __init__(
        self,
        tasksets: Sequence[EvalTaskset],
        scheduler: Scheduler,
        *,
        answers: Mapping[str, AnswerFiles] | None = None,
        is_detailed: bool = False,
    ) -> None:
        self.tasksets = list(tasksets)
        self._scheduler = scheduler
        self._answers = answers or {}
        self._is_detailed = is_detailed

    async def evaluate(self, step: int, *, prefix: str = EVAL, must_complete: bool = False) -> dict[str, float]:
        """Return the metrics of all tasksets.

        A key is `<prefix>/<taskset>/<metric>/<what>`.

        Args:
            step: the explore step after which the evaluation comes; part of the ids.
            prefix: first part of the names: `eval`, or `bench`.
            must_complete: a taskset of which no run is completed is an error, else a warning.

        Raises:
            WorkflowError: no rollout of a taskset was completed (E5131).
        """
        started = time.monotonic()
        metrics: dict[str, float] = {}
        for taskset in self.tasksets:
            result = await self._scheduler.schedule(taskset.tasks, batch=f"{step}/{taskset.name}")
            if result.results and not result.completed:
                _tell_failed(taskset.name, result, is_error=must_complete)
            if prefix in self._answers:
                await asyncio.to_thread(self._answers[prefix].write, taskset.name, step, taskset.tasks, result)
            metrics |= _metrics(taskset, result, f"{prefix}/{taskset.name}", is_detailed=self._is_detailed)
        metrics["time/eval"] = time.monotonic() - started
        return metrics


def _tell_failed(name: str, result: BatchResult, *, is_error: bool) -> None:
    text = (
        f"evaluation: no rollout of the taskset {name!r} was completed; the most common reason: {result.reasons()[0]}; "
        "correct its workflow or reward function, or explorer.max_timeout"
    )
    if is_error:
        raise WorkflowError(f"{text}, or switch it off with explorer.eval_on_startup: false", code="E5131")
    logger.warning("%s", text)


def _metrics(taskset: EvalTaskset, result: BatchResult, prefix: str, *, is_detailed: bool) -> dict[str, float]:
    metrics = outcome_counts(result, prefix)
    metrics |= truncation_counts(result.experiences, prefix)
    for name, by_task in sorted(values_by_task(result).items()):
        for what, value in eval_metrics(by_task, taskset.repeat_times, is_detailed=is_detailed).items():
            metrics[f"{prefix}/{name}/{what}"] = value
    return metrics | time_metrics(result, f"{prefix}/time")
