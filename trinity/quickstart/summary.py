"""The summary of a quickstart run: results, output paths, next steps."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.monitor.jsonl import read_metrics
from trinity.summary.canvas import drawn
from trinity.summary.curves import read_curves
from trinity.summary.facts import CURVE_NAME, PAGE_NAME, SUMMARY_NAME, latest_hf_model
from trinity.summary.picture import panel_of
from trinity.summary.table import command
from trinity.summary.words import is_chinese
from trinity.utils.disk import write_atomically

if TYPE_CHECKING:
    from trinity.common.config import Plan


@dataclass(frozen=True)
class StageRun:
    """One stage as it was run.

    Attributes:
        name: of the stage.
        job_dir: its folder.
        seconds: wall time of the stage.
    """

    name: str
    job_dir: Path
    seconds: float


@dataclass(frozen=True)
class StageSummary:
    """The results of one stage.

    Accuracies are greedy and held out, in [0, 1]; None where nothing was evaluated.
    """

    name: str
    job_dir: str
    seconds: float
    num_steps: int
    num_tokens: float
    accuracy_before: float | None
    accuracy_after: float | None
    loss_first: float | None
    loss_last: float | None
    has_rollouts: bool
    hf_model: str | None


@dataclass(frozen=True)
class Summary:
    """The results of the whole run.

    `accuracy_before` and `accuracy_after` are those of the last evaluated stage.
    """

    seed: int
    accuracy_before: float | None
    accuracy_after: float | None
    run_seconds: float
    tokens_per_second: float | None
    stages: tuple[StageSummary, ...]


def summarize(stages: Sequence[StageRun], *, seed: int, initial_accuracy: float | None = None) -> Summary:
    """Return the numbers of a run.

    A stage without its own evaluations ends with the initial accuracy of the next stage.

    Args:
        stages: in the order they ran.
        seed: of the run.
        initial_accuracy: of the model before the first stage.
    """
    curves = [read_curves(stage.job_dir) for stage in stages]
    summaries = []
    for i, (stage, curve) in enumerate(zip(stages, curves, strict=True)):
        points = curve.accuracy
        following = curves[i + 1].accuracy if i + 1 < len(curves) else []
        before = points[0][1] if points else initial_accuracy if i == 0 else None
        after = points[-1:] or following[:1]
        model = latest_hf_model(stage.job_dir)
        summaries.append(
            StageSummary(
                name=stage.name,
                job_dir=str(stage.job_dir),
                seconds=round(stage.seconds, 3),
                num_steps=curve.num_steps,
                num_tokens=curve.num_tokens,
                accuracy_before=before,
                accuracy_after=after[0][1] if after else None,
                loss_first=curve.loss[0][1] if curve.loss else None,
                loss_last=curve.loss[-1][1] if curve.loss else None,
                has_rollouts=bool(curve.reward),
                hf_model=str(model) if model else None,
            )
        )
    return _total(summaries, seed)


def _total(stages: list[StageSummary], seed: int) -> Summary:
    seconds = sum(stage.seconds for stage in stages)
    tokens = sum(stage.num_tokens for stage in stages)
    evaluated = [stage for stage in stages if stage.accuracy_after is not None]
    last = evaluated[-1] if evaluated else None
    return Summary(
        seed=seed,
        accuracy_before=last.accuracy_before if last else None,
        accuracy_after=last.accuracy_after if last else None,
        run_seconds=round(seconds, 3),
        tokens_per_second=round(tokens / seconds, 1) if tokens and seconds else None,
        stages=tuple(stages),
    )


def planned_runs(plan: Plan, done: Sequence[StageRun], directory: Path, *, started: float) -> list[StageRun]:
    """Return all stages of a plan as they ran, now or earlier.

    A stage that an earlier run completed has no result of its own; the plan names them all.

    Args:
        plan: of the run.
        done: stages that ran now.
        directory: of the quickstart, with the earlier summary if there is one.
        started: time of the start of this run, in seconds since the epoch.
    """
    now = {stage.name: stage for stage in done}
    names = {stage.name or "": Path(stage.config.checkpoint_job_dir) for stage in plan.stages}
    stages = [now.get(name) or StageRun(name, job_dir, 0.0) for name, job_dir in names.items()]
    return keep_known_times(stages, directory, started=started)


def keep_known_times(stages: Sequence[StageRun], directory: Path, *, started: float) -> list[StageRun]:
    """Return `stages`, with earlier times for stages that did no work now.

    The times come from the summary of an earlier run.

    Args:
        stages: as they ran now; a stage that was complete already took no time.
        directory: of the quickstart, with the earlier summary if there is one.
        started: time of the start of this run, in seconds since the epoch.
    """
    path = directory / SUMMARY_NAME
    if not path.exists():
        return list(stages)
    known = {stage["name"]: stage["seconds"] for stage in json.loads(path.read_text(encoding="utf-8"))["stages"]}
    return [
        stage
        if stage.name not in known or _last_time(stage.job_dir) >= started
        else StageRun(stage.name, stage.job_dir, known[stage.name])
        for stage in stages
    ]


def _last_time(job_dir: Path) -> float:
    return max((record["time"] for record in read_metrics(job_dir / "metrics.jsonl")), default=0.0)


def write_summary(summary: Summary, directory: Path) -> Path:
    """Write `summary.json` into `directory` and return its path."""
    path = directory / SUMMARY_NAME
    path.write_text(json.dumps(asdict(summary), indent=2) + "\n", encoding="utf-8")
    return path


def write_curve(summary: Summary, directory: Path) -> Path:
    """Plot loss, reward and held-out accuracy over the steps of each stage.

    Returns the path of the PNG.
    """
    panels = [panel_of(stage.name, read_curves(Path(stage.job_dir))) for stage in summary.stages]
    path = directory / CURVE_NAME
    write_atomically(path, drawn(panels, is_chinese=is_chinese(os.environ)))
    return path


def next_steps(summary: Summary, config: Path) -> list[str]:
    """Return what to do next, one command or place a line."""
    lines = []
    if summary.stages:
        root = Path(summary.stages[0].job_dir).parent
        lines.append(f"curves       {command('tensorboard')} --logdir {root}")
        lines.append(f"metrics      {Path(summary.stages[-1].job_dir) / 'metrics.jsonl'}")
        models = [stage.hf_model for stage in summary.stages if stage.hf_model]
        lines.extend(f"model        {model}" for model in models[-1:])
        lines.append(f"report       {Path(summary.stages[-1].job_dir) / PAGE_NAME}")
        lines.append(f"logs         {Path(summary.stages[-1].job_dir) / 'log'}")
    lines.append(f"run again    {command('trinity')} run --config {config}    (continues from the last checkpoint)")
    return lines
