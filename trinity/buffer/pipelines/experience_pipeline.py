"""Process an explore step's experiences before they are stored.

Operators run in the order written, then the group advantage is computed.
"""

from __future__ import annotations

import inspect
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trinity.buffer.operators import ExperienceOperatorV1
from trinity.buffer.store.fates import ISSUED, failed, filtered
from trinity.buffer.store.types import rollout_keys
from trinity.common.constants import SELECTOR_METRIC
from trinity.common.errors import TrinityError, WorkflowError
from trinity.common.experience import Experience
from trinity.runtime.failure import user_place
from trinity.runtime.worker_thread import WorkerThread
from trinity.utils.deadline import bounded
from trinity.utils.log import get_logger
from trinity.utils.stateful import Stateful

logger = get_logger("explorer")

DEFAULT_TIMEOUT_S = 1800.0
ADVANTAGE = "advantage"


class PipelineStep(Protocol):
    """An operator or an advantage function of groups.

    Anything with the operators' `process` method will do.
    """

    def process(self, exps: list[Experience]) -> Any:
        """Return the remaining experiences and metrics by name.

        The result may be an awaitable of them.
        """


@dataclass(frozen=True)
class Processed:
    """Result of the pipeline for an explore step, or for a part of one.

    Attributes:
        experiences: the experiences to store.
        metrics: names without a prefix.
        fates: number of rollouts by fate: those of which no experience is left, and as `issued` those that operators
            added.
    """

    experiences: list[Experience]
    metrics: dict[str, Any]
    fates: Counter[str]


class ExperiencePipeline:
    """Applies operators and the group advantage, one explore step at a time.

    Args:
        operators: operators in their order, alone or as pairs of name and operator.
        advantage_fn: computes advantages from whole groups (`process(exps) -> (exps, metrics)`); None if the
            trainer computes them.
        timeout_s: longest time of one call of an operator, in seconds.
    """

    def __init__(
        self, operators: Sequence[Any] = (), advantage_fn: Any = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._steps = _named(operators)
        self._advantage_fn = advantage_fn
        self._timeout_s = timeout_s
        self._worker = WorkerThread("experience_pipeline")

    async def prepare(self) -> None:
        """Prepare every operator."""
        for name, operator in self._steps:
            if isinstance(operator, ExperienceOperatorV1):
                await self._bounded(operator.prepare(), f"experience operator {name} to prepare")

    async def close(self) -> None:
        """Close every operator."""
        for name, operator in self._steps:
            if isinstance(operator, ExperienceOperatorV1):
                await self._bounded(operator.close(), f"experience operator {name} to close")
            elif hasattr(operator, "close"):
                await self._bounded(self._worker.call(operator.close), f"experience operator {name} to close")
        self._worker.close()

    def set_auxiliary_model(self, models: Mapping[str | int, Any]) -> None:
        """Pass auxiliary models by name to the operators that take them."""
        for _, operator in self._steps:
            if isinstance(operator, ExperienceOperatorV1):
                operator.set_auxiliary_model(models)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of operators and advantage function, by name.

        The values are JSON values; only those that have a state are included.

        Raises:
            WorkflowError: a state is no JSON value (E5140).
        """
        found = {}
        for name, step in self._stateful():
            try:
                state = json.loads(json.dumps(step.state_dict()))
            except (TypeError, ValueError) as error:
                raise WorkflowError(
                    f"state_dict of the experience operator {name} must return a dict of JSON values: {error}; write "
                    "tensors as lists",
                    code="E5140",
                ) from error
            if state:
                found[name] = state
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned.

        The state of an operator that no longer exists is ignored, with a warning.
        """
        steps = dict(self._stateful())
        for name, own in state.items():
            if name in steps:
                steps[name].load_state_dict(own)
            else:
                logger.warning("the checkpoint holds a state of the experience operator %s, which is not used", name)

    def _stateful(self) -> list[tuple[str, Stateful]]:
        steps = [*self._steps, (ADVANTAGE, self._advantage_fn)]
        return [(name, step) for name, step in steps if isinstance(step, Stateful)]

    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        """Return the experiences to store and metrics (names without a prefix).

        The metrics are those of the operators as `<operator>/<name>`, and also as `<name>`, of which the last
        operator's is kept; those of the advantage function under their own names, `filtered_count` (all that were
        dropped on the way), `rejected_count` (of these, dropped because an operator left a reward that is not finite),
        `experience_count` (left) and `time/<step>` in seconds. What an operator returns as `selector_metric` is passed
        on under this name, for the selector of the taskset; the last one is kept.

        Raises:
            WorkflowError: an operator failed or returned something else than experiences and metrics.
            DeadlineError: an operator took longer than `timeout_s`.
        """
        done = await self.complete([await self.operate(exps)])
        return done.experiences, done.metrics

    async def operate(self, exps: list[Experience]) -> Processed:
        """Apply the operators to some experiences of an explore step.

        Raises:
            WorkflowError: see `process`.
            DeadlineError: see `process`.
        """
        metrics: dict[str, Any] = {}
        fates, dropped = Counter[str](), 0
        for name, operator in self._steps:
            before, num_before = rollout_keys(exps), len(exps)
            exps, own, metrics[f"time/{name}"] = await self._step(name, operator, exps)
            numbers = _numbers(own)
            metrics |= numbers | {f"{name}/{key}": value for key, value in numbers.items()}
            metrics |= {key: value for key, value in own.items() if key == SELECTOR_METRIC}
            dropped += max(0, num_before - len(exps))
            fates += _changed(before, exps, filtered(name))
        usable = [e for e in exps if e.reward is None or math.isfinite(e.reward)]
        fates += _changed(rollout_keys(exps), usable, failed("rejected"))
        metrics["rejected_count"] = len(exps) - len(usable)
        metrics["filtered_count"] = dropped + len(exps) - len(usable)
        return Processed(usable, metrics, fates)

    async def complete(self, parts: Sequence[Processed]) -> Processed:
        """Return the experiences of an explore step, with advantages.

        `parts` are the results of `operate` for all parts of the step.

        Raises:
            WorkflowError: see `process`.
            DeadlineError: see `process`.
        """
        exps = [experience for part in parts for experience in part.experiences]
        metrics, fates = _together(parts), sum((part.fates for part in parts), Counter[str]())
        if self._advantage_fn is not None:
            before, num_before, dropped = rollout_keys(exps), len(exps), metrics["filtered_count"]
            exps, own, metrics["time/advantage"] = await self._step(ADVANTAGE, self._advantage_fn, exps)
            metrics |= _numbers(own)
            metrics["filtered_count"] = dropped + max(0, num_before - len(exps))
            fates += _changed(before, exps, filtered(ADVANTAGE))
        metrics["experience_count"] = len(exps)
        return Processed(exps, metrics, fates)

    async def _step(
        self, name: str, step: PipelineStep, exps: list[Experience]
    ) -> tuple[list[Experience], dict[str, Any], float]:
        started = time.perf_counter()
        what = f"experience operator {name}"
        try:
            if inspect.iscoroutinefunction(step.process):
                result = await self._bounded(step.process(exps), what)
            else:
                result = await self._bounded(self._worker.call(step.process, exps), what)
        except TrinityError:
            raise
        except Exception as error:  # whatever a plugin raises ends the run, under the operator's name
            said = f"{type(error).__name__}: {error} ({user_place(error)})"
            raise WorkflowError(f"{what} failed on {len(exps)} experiences: {said}") from error
        if not _is_result(result):
            got = type(result).__name__
            raise WorkflowError(f"{what} must return (list of Experience, dict of metrics), got {got}")
        return result[0], result[1], time.perf_counter() - started

    async def _bounded(self, awaitable: Any, what: str) -> Any:
        return await bounded(awaitable, self._timeout_s, what=what, setting="explorer.max_timeout")


def _changed(old: set[str], after: Sequence[Experience], fate: str) -> Counter[str]:
    """Count the rollouts that are gone as `fate`, and new ones as `issued`."""
    new = rollout_keys(after)
    return +Counter({fate: len(old - new), ISSUED: len(new - old)})


def _together(parts: Sequence[Processed]) -> dict[str, Any]:
    """Return the metrics of the parts of an explore step as those of the step.

    Counts and times are sums, others are means of the parts that have them. The metric for the selector is left out if
    several parts have it.
    """
    values: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.metrics.items():
            values.setdefault(name, []).append(value)
    return {
        name: found[0] if len(found) == 1 else sum(found) / (1 if _is_summed(name) else len(found))
        for name, found in values.items()
        if name != SELECTOR_METRIC or len(found) == 1
    }


def _is_summed(name: str) -> bool:
    return name.endswith("_count") or name.startswith("time/")


def _named(operators: Sequence[Any]) -> list[tuple[str, Any]]:
    named: list[tuple[str, Any]] = []
    for entry in operators:
        name, operator = entry if isinstance(entry, tuple) else (type(entry).__name__, entry)
        taken = {known for known, _ in named}
        unique = name if name not in taken else f"{name}_{len(named)}"
        named.append((unique, operator))
    return named


def _is_result(result: Any) -> bool:
    return (
        isinstance(result, tuple)
        and len(result) == 2
        and isinstance(result[0], list)
        and all(isinstance(e, Experience) for e in result[0])
        and isinstance(result[1], dict)
    )


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(v) for name, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)}
