"""The figures of a job: what `summary.json` holds, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trinity.common.checkpoint import CheckpointStore
from trinity.summary.curves import LENGTH, Points, StageCurves, ends

SUMMARY_NAME = "summary.json"
CURVE_NAME = "learning_curve.png"
PAGE_NAME = "report.html"
SCHEMA = 1
OF_EVALUATION, OF_TENTHS = "evaluation", "tenths"


@dataclass(frozen=True)
class Change:
    """A metric at the beginning and at the end.

    Attributes:
        metric: its name in `metrics.jsonl`.
        before: its first value.
        after: its last value.
        of: `evaluation`: of the first and the last one; `tenths`: means over the first and the last tenth of the steps.
        first_step: step of the first value.
        last_step: step of the last value.
    """

    metric: str
    before: float
    after: float
    of: str
    first_step: int
    last_step: int


@dataclass(frozen=True)
class BestStep:
    """The first step at which the main metric had its highest value.

    Attributes:
        metric: its name.
        value: the highest.
        step: of the metric.
        training_step: of the weights that gave it; 0: the initial model; None: not known.
        checkpoint: the folder of these weights; None: none of this step is kept.
    """

    metric: str
    value: float
    step: int
    training_step: int | None
    checkpoint: str | None


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint of the job.

    Attributes:
        step: training step.
        path: its folder.
        has_hf_weights: whether it is an ordinary Hugging Face folder, too.
    """

    step: int
    path: str
    has_hf_weights: bool


@dataclass(frozen=True)
class NextCommand:
    """A command for what may come next.

    Attributes:
        what: in a word: `resume`, `show`, `view`, `export`, `convert`, `curves`.
        command: for a shell.
    """

    what: str
    command: str


@dataclass(frozen=True)
class JobSummary:
    """A job after a run; the keys of `summary.json`.

    Attributes:
        schema: of these keys; other keys may be added without a change of it.
        job: its folder.
        stage: name of the stage; None: the run has no stages.
        status: `done`, `stopped`, `failed`, `killed` or `running`; of several parts, of the one to look at first.
        error: why it failed; empty: it did not.
        training_step: the last one.
        explore_step: the last one.
        seconds: wall time of all its runs together, those apart added up; without those that were killed.
        metrics: what it was like before and after, the main metric first.
        best: the best step; None: nothing says which is better.
        checkpoints: those that are kept, oldest first.
        rollouts: by buffer `issued`, `waiting` and what happened to the others, as `trinity show` says.
        counts: of what was left out or done again beside them.
        tokens: `generated` by engines here, and `trained`; None: not counted.
        time: seconds of each part of the run; parts overlap.
        commands: what may come next.
        files: names of files in the folder that show the same.
        notes: what is missing here, and why.
    """

    schema: int
    job: str
    stage: str | None
    status: str
    error: str
    training_step: int
    explore_step: int
    seconds: float
    metrics: tuple[Change, ...] = ()
    best: BestStep | None = None
    checkpoints: tuple[KeptCheckpoint, ...] = ()
    rollouts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, int | None] = field(default_factory=dict)
    time: Mapping[str, float] = field(default_factory=dict)
    commands: tuple[NextCommand, ...] = ()
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the text of `summary.json`."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def of_text(cls, text: str) -> JobSummary:
        """Return what `text` returned.

        Raises:
            ValueError: it is of another schema, or not a summary.
        """
        try:
            facts: dict[str, Any] = json.loads(text)
            if facts.get("schema") != SCHEMA:
                raise ValueError(f"a summary of schema {SCHEMA} is read here, got {facts.get('schema')}")
            best = facts["best"]
            made = {
                "metrics": tuple(Change(**each) for each in facts["metrics"]),
                "best": None if best is None else BestStep(**best),
                "checkpoints": tuple(KeptCheckpoint(**each) for each in facts["checkpoints"]),
                "commands": tuple(NextCommand(**each) for each in facts["commands"]),
                "files": tuple(facts["files"]),
                "notes": tuple(facts["notes"]),
            }
            return cls(**(facts | made))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"this is no summary of a job: {error}") from error


def changes(curves: StageCurves) -> tuple[Change, ...]:
    """Return the metrics before and after, the main one first.

    The loss is among them only where nothing is explored: that of reinforcement says nothing about progress.
    """
    main = curves.main_evaluation
    names = sorted(curves.evaluations, key=lambda name: name != main)
    found = [_of_evaluation(name, curves.evaluations[name]) for name in names]
    if curves.reward:
        found.append(_of_tenths(curves.reward_name, curves.reward))
    if curves.length:
        found.append(_of_tenths(LENGTH, curves.length))
    if curves.loss and not curves.reward:
        found.append(_of_tenths(curves.loss_name, curves.loss))
    return tuple(found)


def _of_evaluation(name: str, points: Points) -> Change:
    (first, before), (last, after) = points[0], points[-1]
    return Change(name, before, after, OF_EVALUATION, first, last)


def _of_tenths(name: str, points: Points) -> Change:
    before, after = ends(points)
    return Change(name, before, after, OF_TENTHS, points[0][0], points[-1][0])


def best_step(curves: StageCurves, kept: Iterable[KeptCheckpoint]) -> BestStep | None:
    """Return the best step by the main evaluation, or by the reward.

    None if there is neither.
    """
    main = curves.main_evaluation or curves.reward_name
    points = curves.accuracy or curves.reward
    if not points:
        return None
    step, value = max(points, key=lambda point: (point[1], -point[0]))
    prefix = main.partition("/")[0] if curves.accuracy else "rollout"
    version = curves.versions.get(f"{prefix}/model_version", {}).get(step)
    folders = {each.step: each.path for each in kept}
    return BestStep(main, value, step, version, None if version is None else folders.get(version))


def kept_checkpoints(job_dir: Path) -> tuple[KeptCheckpoint, ...]:
    """Return the checkpoints of a job, oldest first."""
    found = []
    for step in CheckpointStore(job_dir).steps():
        path = job_dir / f"global_step_{step}"
        has_weights = any((path / "actor" / "huggingface").glob("*.safetensors"))
        found.append(KeptCheckpoint(step, str(path), has_weights))
    return tuple(found)


def latest_hf_model(job_dir: Path) -> Path | None:
    """Return the newest checkpoint's Hugging Face folder with weights."""
    found = [Path(each.path) for each in kept_checkpoints(job_dir) if each.has_hf_weights]
    return found[-1] / "actor" / "huggingface" if found else None
