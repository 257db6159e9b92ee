"""The pipeline of an explore step, and tasks in place of dropped ones.

results --operators--> kept rollouts --enough, or no more allowed--> advantages --> the step
^                        |
+---- further tasks -----+ whole tasks, so that never more is kept than the step was to have
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trinity.buffer.store.types import num_rollouts
from trinity.common.constants import SELECTOR_METRIC
from trinity.explorer.advantage_inputs import attach_baselines
from trinity.explorer.outcome import BatchResult, summed

if TYPE_CHECKING:
    from trinity.buffer.pipelines.experience_pipeline import ExperiencePipeline, Processed
    from trinity.common.experience import Experience

Further = Callable[[int, int], Awaitable[BatchResult | None]]
"""Attempts so many further tasks, numbered from the second argument on; None where the taskset is at its end."""
Feedback = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class ProcessedStep:
    """What an explore step came to.

    Attributes:
        result: outcomes of all runs, those of further tasks included.
        experiences: what is stored.
        metrics: of the pipeline, without a prefix.
        baselines: metrics of greedy runs.
        counts: what happened to the rollouts, by fate.
    """

    result: BatchResult
    experiences: list[Experience]
    metrics: dict[str, Any]
    baselines: dict[str, float]
    counts: Counter[str]


class Refill:
    """Runs the pipeline, and fills a step again.

    Args:
        pipeline: operators and advantages.
        max_tasks: further tasks of a step, at most; 0: none, a step is then as small as operators leave it.
    """

    def __init__(self, pipeline: ExperiencePipeline, *, max_tasks: int) -> None:
        self._pipeline = pipeline
        self._max_tasks = max_tasks

    async def process(self, result: BatchResult, *, further: Further, feedback: Feedback) -> ProcessedStep:
        """Return what comes of the results of a step and of further tasks.

        Args:
            result: of the step's own tasks.
            further: attempts more tasks.
            feedback: tells the selector how the tasks went, before it chooses others.
        """
        baselines = attach_baselines(result)
        results, parts = [result], [await self._operate(result, feedback)]
        wanted = result.issued_run_count - result.unfinished_run_count
        repeats = max(1, result.issued_run_count // max(1, result.task_count))
        num_more, missing = 0, wanted - num_rollouts(parts[0].experiences)
        while (number := min(missing // repeats, self._max_tasks - num_more)) > 0:
            more = await further(number, result.task_count + num_more)
            if more is None:
                break
            num_more += number
            baselines |= attach_baselines(more)
            results.append(more)
            parts.append(await self._operate(more, feedback))
            missing -= num_rollouts(parts[-1].experiences)
        done = await self._pipeline.complete(parts)
        metrics = done.metrics
        if self._max_tasks:
            metrics |= {
                "refill/task_count": float(num_more),
                "refill/round_count": float(len(parts) - 1),
                "refill/missing_count": float(max(0, missing)),
            }
        whole = result if len(results) == 1 else summed(results)
        return ProcessedStep(whole, done.experiences, metrics, baselines, done.fates + whole.fates)

    async def _operate(self, result: BatchResult, feedback: Feedback) -> Processed:
        processed = await self._pipeline.operate([_own(experience) for experience in result.experiences])
        await feedback(processed.metrics.pop(SELECTOR_METRIC, {}))
        return processed


def _own(experience: Experience) -> Experience:
    """Return a copy that operators may change.

    The metrics of the step, and the pipeline's input that is kept, describe the rollouts before operators change them.
    """
    own = copy.copy(experience)
    own.info, own.metrics = dict(experience.info), dict(experience.metrics)
    for name, value in vars(experience).items():
        if isinstance(value, Tensor):
            setattr(own, name, value.clone())
    return own
