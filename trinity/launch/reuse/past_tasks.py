"""The tasks of stored rollouts, read again from the run's taskset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity.common.config import Config
from trinity.common.config.resolved import training_tasksets
from trinity.common.errors import ConfigError, DataError
from trinity.common.experience import Experience
from trinity.common.models.call_timeout import call_timeout_s
from trinity.common.workflows.customized_math_workflows import AsyncMathBoxedWorkflow, MathBoxedWorkflow
from trinity.common.workflows.math_ruler_workflow import AsyncMathRULERWorkflow, MathRULERWorkflow, Ruler
from trinity.common.workflows.rubric_judge_workflow import RubricJudgeWorkflow
from trinity.common.workflows.simple_mm_workflow import AsyncSimpleMMWorkflow
from trinity.common.workflows.task import Task
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, SimpleWorkflow
from trinity.explorer.assembly import build_reader

_SCORING_RUNS = (
    SimpleWorkflow.run,
    MathBoxedWorkflow.run,
    AsyncSimpleWorkflow.run_async,
    AsyncMathBoxedWorkflow.run_async,
    AsyncSimpleMMWorkflow.run_async,
)
"""What gives every response the sum of its `scores` as reward."""
_SCORES = (SimpleWorkflow.score, RubricJudgeWorkflow.score)
_COMPARING_RUNS = (MathRULERWorkflow.run, AsyncMathRULERWorkflow.run_async)
"""What lets the first auxiliary model compare the responses to a task."""


@dataclass(frozen=True)
class NoModel:
    """In place of a model where prompts and rewards alone are asked for.

    Attributes:
        timeout_s: longest wait for a call of a service.
    """

    timeout_s: float


def rewards_are_scores(kind: type) -> bool:
    """Return whether rewards follow from each response alone."""
    if not issubclass(kind, SimpleWorkflow) or "auxiliary_model" in kind.needs:
        return False
    return _run_of(kind) in _SCORING_RUNS and kind.score is SimpleWorkflow.score


def is_judged(kind: type) -> bool:
    """Return whether a judge gives each response its reward."""
    return issubclass(kind, SimpleWorkflow) and _run_of(kind) in _SCORING_RUNS and kind.score in _SCORES


def is_compared(kind: type) -> bool:
    """Return whether a judge gives the responses to a task their rewards."""
    return issubclass(kind, Ruler) and _run_of(kind) in _COMPARING_RUNS and kind.score is SimpleWorkflow.score


def _run_of(kind: type[SimpleWorkflow]) -> Any:
    return kind.run_async if kind.is_async else kind.run


class PastTasks:
    """The tasksets of a run of the past.

    Args:
        config: of the run, perhaps with another reward.
        fingerprints: of the rows that it explored, by number of the taskset, where they are known.
        own: of the run as it was, if that is another one.

    Raises:
        ConfigError: the run explored no taskset (E1925).
        DataError: the rows are others now, or another reward can use others of them (E4073), or they cannot be read.
    """

    def __init__(self, config: Config, fingerprints: Mapping[int, str], *, own: Config | None = None) -> None:
        if not training_tasksets(config):
            raise ConfigError(
                "the run has no taskset (buffer.explorer_input.taskset): prompts and truths of its rollouts are not "
                "known here",
                code="E1925",
            )
        self._readers = build_reader(config).by_number
        self._timeout_s = call_timeout_s(config)
        for number, reader in self._readers.items():
            if fingerprints.get(number, reader.fingerprint) != reader.fingerprint:
                raise DataError(
                    f"the rows of the taskset {reader.config.name!r} are not those of the run: they changed since its "
                    "newest checkpoint, and a rollout would be taken for that of another row; restore them",
                    code="E4073",
                )
        before = {} if own is None else build_reader(own).by_number
        for number, reader in self._readers.items():
            if number in before and before[number].usable_rows != reader.usable_rows:
                then, now = set(before[number].usable_rows), set(reader.usable_rows)
                raise DataError(
                    f"of the taskset {reader.config.name!r} the run could use {len(then)} rows, this reward can use "
                    f"{len(now)}; they differ in row {min(then ^ now) + 1}, and a rollout, which names its row by its "
                    "number among these, would be taken for that of another one; correct those rows, or choose a "
                    "reward that can use the same",
                    code="E4073",
                )
        self._last: tuple[tuple[int, int], Task] | None = None
        self._made: tuple[tuple[tuple[int, int], type], SimpleWorkflow] | None = None

    def workflow(self, experience: Experience) -> SimpleWorkflow:
        """Return the workflow of a rollout's task, without a model.

        Raises:
            DataError: the rollout names no row of the taskset (E4073).
            ConfigError: its workflow makes prompts and rewards itself (E1925).
        """
        kind = self._task(experience)[1].workflow
        if not issubclass(kind, SimpleWorkflow):
            raise ConfigError(
                f"the workflow {kind.__name__} makes its prompts itself: its rollouts cannot be used again in this way",
                code="E1925",
            )
        return self._of(experience, kind)

    def scorer(self, experience: Experience, *, is_reward_given: bool) -> tuple[type[SimpleWorkflow], bool]:
        """Return the workflow that scores a rollout's responses.

        Return as well whether it scores those to a task together.

        Args:
            experience: of the rollout.
            is_reward_given: the user names a reward function, so that it scores what any workflow's model said.

        Raises:
            DataError: the rollout names no row of the taskset (E4073).
            ConfigError: the rewards of its workflow do not follow from its responses (E1925).
        """
        kind = self._task(experience)[1].workflow
        if rewards_are_scores(kind):
            return kind, False
        if is_reward_given:
            return SimpleWorkflow, False
        if is_judged(kind) or is_compared(kind):
            return kind, is_compared(kind)
        raise ConfigError(
            f"the workflow {kind.__name__} gives its rewards itself: they do not follow from what is stored; name a "
            "reward function that scores each response, with --reward",
            code="E1925",
        )

    def has_judges(self) -> bool:
        """Return whether a judge gives rewards to tasks, however many."""
        for reader in self._readers.values():
            names_them = reader.config.format.workflow_key is not None
            kinds = {reader.task(row).workflow for row in range(len(reader) if names_them else min(1, len(reader)))}
            if any(not rewards_are_scores(kind) and (is_judged(kind) or is_compared(kind)) for kind in kinds):
                return True
        return False

    def made(self, experience: Experience, kind: type[SimpleWorkflow], models: Sequence[Any] = ()) -> SimpleWorkflow:
        """Return a workflow of a rollout's task, without a policy.

        Args:
            experience: of the rollout.
            kind: of the workflow.
            models: the auxiliary models.
        """
        policy: Any = NoModel(self._timeout_s)
        return kind(task=self._task(experience)[1], model=policy, auxiliary_models=list(models))

    def _task(self, experience: Experience) -> tuple[tuple[int, int], Task]:
        """Return number of the taskset and of the row, and the task."""
        place = experience.info.get("task_index") or {}
        number, index = place.get("taskset_id", min(self._readers)), place.get("index")
        reader = self._readers.get(number)
        if reader is None or not isinstance(index, int) or not 0 <= index < len(reader):
            names = ", ".join(f"{each.config.name!r} ({len(each)} rows)" for each in self._readers.values())
            raise DataError(
                f"experience {experience.eid.uid} names no row of the run's tasksets, {names}: only rollouts of a "
                "taskset that is still there can be used again in this way",
                code="E4073",
            )
        found = self._last  # scorers of several tasks ask beside each other
        if found is None or found[0] != (number, index):
            found = self._last = (number, index), reader.task(index)
        return found

    def _of(self, experience: Experience, kind: type[SimpleWorkflow]) -> SimpleWorkflow:
        place, _ = self._task(experience)
        if self._made is None or self._made[0] != (place, kind):
            self._made = (place, kind), self.made(experience, kind)
        return self._made[1]
