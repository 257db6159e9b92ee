"""Reports of a run, an evaluation and a check of a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config, ConfigErrors, Derived, Finding, Plan, StagePlan
from trinity.launch.job import read_record
from trinity.launch.parts import part_of
from trinity.launch.run import RunResult
from trinity.launch.stage import StageResult
from trinity.monitor.jsonl import read_metrics
from trinity.monitor.monitor import METRICS_FILE, RESERVED
from trinity.program.events import EVALUATION
from trinity.quickstart.summary import StageRun, Summary, summarize
from trinity.summary.facts import latest_hf_model

if TYPE_CHECKING:
    from trinity.buffer.store.types import Fates

_SCORE = re.compile(r"bench/(?P<taskset>.+)/(?P<metric>[^/]+)/(?P<what>mean@\d+)")


@dataclass(frozen=True)
class StageReport:
    """The result of one stage of a run.

    Attributes:
        name: of the stage; None for a run without stages.
        job_dir: folder with checkpoints, metrics and logs.
        seconds: wall time of this call in it; 0 if it was complete before.
        training_step: last training step.
        explore_step: last explore step.
        is_resumed: whether this call continued it from a checkpoint.
        was_complete: whether an earlier run completed it, and this one skipped it.
        model_path: the newest Hugging Face folder of it, which the next stage or an engine can load.
        checkpoints: folders of the checkpoints that are kept, oldest first.
        metrics: the last value of every metric.
        evaluations: metrics of each evaluation by its explore step; in mode bench, by training step.
        fates: what happened to the rollouts; None where there are none, or the stage was complete before.
    """

    name: str | None
    job_dir: Path
    seconds: float
    training_step: int
    explore_step: int
    is_resumed: bool
    was_complete: bool
    model_path: Path | None
    checkpoints: tuple[Path, ...] = field(repr=False)
    metrics: Mapping[str, float] = field(repr=False)
    evaluations: Mapping[int, Mapping[str, float]] = field(repr=False)
    fates: Fates | None = None


@dataclass(frozen=True)
class RunReport:
    """The result of a run that has completed.

    Attributes:
        stages: all stages in order, also those that were complete before.
        summary: the figures that `summary.json` of the quickstart has.
    """

    stages: tuple[StageReport, ...]
    summary: Summary = field(repr=False)

    @property
    def model_path(self) -> Path | None:
        """The Hugging Face folder of the last stage that has one."""
        return next((stage.model_path for stage in reversed(self.stages) if stage.model_path is not None), None)

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """The checkpoints of the last stage."""
        return self.stages[-1].checkpoints

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last value of every metric of the last stage."""
        return self.stages[-1].metrics


@dataclass(frozen=True)
class EvaluationReport:
    """Scores of a model.

    Attributes:
        model_path: what was evaluated.
        scores: mean of each metric by taskset, such as `{"tasks": {"accuracy": 0.75}}`.
        metrics: all figures, under the names that mode bench logs.
        seconds: wall time.
    """

    model_path: Path
    scores: Mapping[str, Mapping[str, float]]
    metrics: Mapping[str, float] = field(repr=False)
    seconds: float = 0.0


@dataclass(frozen=True)
class ValidationReport:
    """The problems and derived values of a configuration.

    Attributes:
        problems: errors and warnings.
        derived: by stage, the values that were not written, with their reasons.
        configs: the complete configuration of every stage; empty if there are errors.
    """

    problems: tuple[Finding, ...]
    derived: tuple[tuple[Derived, ...], ...] = field(default=(), repr=False)
    configs: tuple[Config, ...] = field(default=(), repr=False)

    @property
    def is_valid(self) -> bool:
        """Whether a run may begin."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What must be changed."""
        return tuple(problem for problem in self.problems if problem.is_error)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What to look at."""
        return tuple(problem for problem in self.problems if not problem.is_error)

    def raise_errors(self) -> None:
        """Raise the errors, if there are any.

        Raises:
            ConfigErrors: all of them.
        """
        if not self.is_valid:
            raise ConfigErrors(list(self.problems))


def run_report(plan: Plan, result: RunResult) -> RunReport:
    """Return the report of a run that ended."""
    done = {stage.name: stage for stage in result.stages}
    stages = tuple(_stage_report(stage, done.get(stage.name)) for stage in plan.stages)
    runs = [StageRun(stage.name or "", _job_dir(stage), _all_seconds(stage)) for stage in plan.stages]
    return RunReport(stages, summarize(runs, seed=plan.stages[0].config.seed))


def _stage_report(stage: StagePlan, done: StageResult | None) -> StageReport:
    record = _record(stage)
    job_dir = _job_dir(stage)
    lines = read_metrics(job_dir / METRICS_FILE)
    return StageReport(
        name=stage.name,
        job_dir=job_dir,
        seconds=done.seconds if done is not None else 0.0,
        training_step=done.training_step if done is not None else int(record.get("training_step", 0)),
        explore_step=done.explore_step if done is not None else int(record.get("explore_step", 0)),
        is_resumed=done is not None and done.is_resumed,
        was_complete=done is None,
        model_path=latest_hf_model(job_dir),
        checkpoints=tuple(job_dir / f"global_step_{step}" for step in CheckpointStore(job_dir).steps()),
        metrics=_last_values(lines),
        evaluations=done.evaluations if done is not None and done.evaluations else _evaluations(lines),
        fates=None if done is None else done.fates,
    )


def _job_dir(stage: StagePlan) -> Path:
    return Path(stage.config.checkpoint_job_dir)


def _record(stage: StagePlan) -> dict[str, Any]:
    return read_record(_job_dir(stage), part_of(stage.config))


def _all_seconds(stage: StagePlan) -> float:
    """Return the time of a stage over all runs of it."""
    return float(_record(stage).get("seconds", 0.0))


def _last_values(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    return {name: value for line in lines for name, value in line.items() if name not in RESERVED and value is not None}


def _evaluations(lines: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for line in lines:
        values = {name: value for name, value in line.items() if name.startswith(EVALUATION)}
        if values:
            found.setdefault(int(line["step"]), {}).update(values)
    return found


def scores_of(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the mean of every metric of every taskset."""
    scores: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        found = _SCORE.fullmatch(name)
        if found is not None:
            scores.setdefault(found["taskset"], {})[found["metric"]] = value
    return scores
