"""The summary of a quickstart run: results, output paths, next steps."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.monitor import headline
from trinity.monitor.jsonl import read_metrics

if TYPE_CHECKING:
    from trinity.common.config import Plan

SUMMARY_NAME = "summary.json"
CURVE_NAME = "learning_curve.png"

Points = list[tuple[int, float]]


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


@dataclass(frozen=True)
class StageCurves:
    """The curves of a stage's `metrics.jsonl` over its steps."""

    loss: Points
    reward: Points
    accuracy: Points
    num_steps: int
    num_tokens: float


def read_curves(job_dir: Path) -> StageCurves:
    """Return the curves of a stage; empty ones if it wrote no metrics."""
    records = read_metrics(job_dir / "metrics.jsonl")
    trained = [record for record in records if headline.loss(record) is not None]
    return StageCurves(
        loss=_points(records, headline.loss),
        reward=_points(records, headline.reward),
        accuracy=_points(records, headline.accuracy),
        num_steps=max((record["step"] for record in trained), default=0),
        num_tokens=sum(headline.num_tokens(record) or 0.0 for record in records),
    )


def _points(records: list[dict[str, Any]], read: Any) -> Points:
    values = [(int(record["step"]), read(record)) for record in records]
    return sorted((step, value) for step, value in values if value is not None)


def latest_hf_model(job_dir: Path) -> Path | None:
    """Return the Hugging Face folder of the newest checkpoint that has one."""
    found = [path for path in job_dir.glob("global_step_*/actor/huggingface") if (path / "config.json").exists()]
    return max(found, key=lambda path: int(path.parts[-3].removeprefix("global_step_")), default=None)


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0 * max(len(summary.stages), 1), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, max(len(summary.stages), 1), squeeze=False)[0]
    for axis, stage in zip(axes, summary.stages, strict=False):
        _draw_stage(axis, stage.name, read_curves(Path(stage.job_dir)))
    path = directory / CURVE_NAME
    figure.savefig(path, dpi=120)
    return path


def _draw_stage(axis: Any, name: str, curves: StageCurves) -> None:
    axis.set_title(name)
    axis.set_xlabel("step")
    if curves.reward or curves.accuracy:
        axis.plot(*zip(*curves.reward, strict=True), label="reward (sampled)", alpha=0.7) if curves.reward else None
        axis.plot(*zip(*curves.accuracy, strict=True), "o-", label="held-out accuracy (greedy)")
        axis.set_ylim(0.0, 1.05)
    elif curves.loss:
        axis.plot(*zip(*curves.loss, strict=True), label="loss")
        axis.set_yscale("log")
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend()


def next_steps(summary: Summary, config: Path) -> list[str]:
    """Return what to do next, one command or place a line."""
    lines = []
    if summary.stages:
        root = Path(summary.stages[0].job_dir).parent
        lines.append(f"curves       {command('tensorboard')} --logdir {root}")
        lines.append(f"metrics      {Path(summary.stages[-1].job_dir) / 'metrics.jsonl'}")
        models = [stage.hf_model for stage in summary.stages if stage.hf_model]
        lines.extend(f"model        {model}" for model in models[-1:])
        lines.append(f"logs         {Path(summary.stages[-1].job_dir) / 'log'}")
    lines.append(f"run again    {command('trinity')} run --config {config}    (goes on from the last checkpoint)")
    return lines


def command(name: str) -> str:
    """Return how to call a program of this environment.

    Returns its name if the shell finds that program, otherwise its path.
    """
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not own.exists() or (found is not None and Path(found).samefile(own)):
        return name
    here = Path.cwd()
    return str(own.relative_to(here) if own.is_relative_to(here) else own)
