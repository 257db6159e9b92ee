"""The end of a run: its summary, in its job folder.

Everything is read from what the run left there, so that a run that was stopped, failed or killed has its summary, too.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.errors import CheckpointError, TrinityError
from trinity.launch.job import PARTS_FOLDER, RECORD, RUNNING, Attempt, read_record
from trinity.launch.jobs import JobState, PartState, part_state
from trinity.launch.samples import Asked, LatestRollout, answers_of, fates_of, own_database, samples_of
from trinity.monitor.monitor import METRICS_FILE
from trinity.summary.canvas import drawn
from trinity.summary.curves import StageCurves, read_curves
from trinity.summary.facts import (
    CURVE_NAME,
    PAGE_NAME,
    SCHEMA,
    SUMMARY_NAME,
    JobSummary,
    KeptCheckpoint,
    NextCommand,
    best_step,
    changes,
    kept_checkpoints,
)
from trinity.summary.page import page
from trinity.summary.picture import panels_of
from trinity.summary.words import is_chinese
from trinity.utils.disk import write_atomically
from trinity.utils.log import get_logger, redact

if TYPE_CHECKING:
    from trinity.buffer.store.types import Fates
    from trinity.common.config import Config
    from trinity.launch.stage import StageResult

logger = get_logger("launch")

NUM_SAMPLES = 4
ALL = 1_000_000


@dataclass
class StageEnd:
    """How a stage ended, for its summary; nothing if it did not begin.

    Its `rollouts` are the newest, where this process cannot read them.
    """

    attempt: Attempt = field(default_factory=Attempt)
    result: StageResult | None = None
    rollouts: list[LatestRollout] = field(default_factory=list)


@contextlib.contextmanager
def summarized(config: Config, job_dirs: list[Path]) -> Iterator[StageEnd]:
    """Leave the summary of a stage that has begun, however it ends.

    Its folder is then appended to `job_dirs`.
    """
    ended, job_dir = StageEnd(), Path(config.checkpoint_job_dir)
    try:
        yield ended
    finally:
        if ended.attempt.has_begun():
            buffer = config.buffer.trainer_input.experience_buffer
            path = str(buffer.path or "") if buffer is not None else ""
            fates = ended.result.fates if ended.result is not None else None
            leave_summary(
                job_dir,
                fates={} if fates is None or buffer is None else {buffer.name: fates},
                url=path if "://" in path and not own_database(job_dir).exists() else None,
                rollouts=ended.rollouts if config.cluster.runtime == "ray" else None,  # whose driver imports no torch
            )
            job_dirs.append(job_dir)


def leave_summary(
    job_dir: Path, *, fates: Mapping[str, Fates], url: str | None, rollouts: Sequence[LatestRollout] | None = None
) -> None:
    """Write `summary.json`, `report.html` and the learning curve of a job.

    What cannot be written is told in a warning: the run is what it is without it.

    Args:
        job_dir: the folder, whose record says how the run ended.
        fates: what happened to the rollouts, by buffer; empty: the store is asked where rollouts were counted.
        url: of the database; None: the one that the folder names.
        rollouts: the newest, for the page; None: they are read from the store.
    """
    try:
        curves = read_curves(job_dir)
        panels = panels_of(job_dir.name, curves)
        reads_chinese = is_chinese(os.environ)
        picture = drawn(panels, is_chinese=reads_chinese) if panels else None
        files = [PAGE_NAME] + [CURVE_NAME] * (picture is not None)
        samples, missing = _samples(job_dir, curves, url, rollouts=rollouts)
        summary = _summary(job_dir, curves, fates=fates, url=url, files=files, notes=missing)
        if picture is not None:
            write_atomically(job_dir / CURVE_NAME, picture)
        html = page(summary, panels, samples, is_chinese=reads_chinese)
        for name, text in ((PAGE_NAME, html), (SUMMARY_NAME, summary.text())):
            written = redact(text).encode(errors="replace")  # a model may write half a character
            write_atomically(job_dir / name, written)
    except Exception as error:  # noqa: BLE001  a run that is done stays done, whatever is wrong with its summary
        reason = redact(f"{type(error).__name__}: {error}")
        logger.warning(
            "%s: the summary of the run could not be written (%s); the run itself ended as its exit code says, "
            "and `trinity status` shows what there is",
            job_dir,
            reason,
        )


def job_summary(job_dir: Path) -> JobSummary:
    """Return the summary of a job.

    It is read from `summary.json` unless something was written after it.
    """
    file = job_dir / SUMMARY_NAME
    if _is_newest(file, job_dir):
        try:
            summary = JobSummary.of_text(file.read_text(encoding="utf-8"))
            if summary.job == str(job_dir.absolute()):
                return summary
        except (OSError, ValueError):  # of another version, or edited: it is made from the rest
            pass
    files = [name for name in (PAGE_NAME, CURVE_NAME) if (job_dir / name).exists()]
    return _summary(job_dir, read_curves(job_dir), fates={}, url=None, files=files, notes=())


def _is_newest(file: Path, job_dir: Path) -> bool:
    sources = [job_dir / METRICS_FILE, job_dir / RECORD, *(job_dir / PARTS_FOLDER).glob("*.json")]
    times = [source.stat().st_mtime_ns for source in sources if source.exists()]
    return file.exists() and file.stat().st_mtime_ns >= max(times, default=0)


def _summary(
    job_dir: Path,
    curves: StageCurves,
    *,
    fates: Mapping[str, Fates],
    url: str | None,
    files: Sequence[str],
    notes: Sequence[str],
) -> JobSummary:
    folder = job_dir.absolute()
    records, state = _records(folder)
    kept = kept_checkpoints(folder)
    if not fates and curves.has_fates:
        fates, missing = _stored_fates(folder, url)
        notes = (*notes, *missing)
    trained, explored = _steps(state, records, curves)
    generated = curves.num_generated
    return JobSummary(
        schema=SCHEMA,
        job=str(folder),
        stage=next((record["stage"] for record in records if record.get("stage")), None),
        status=state.status,
        error=next((part.error for part in state.parts if part.error), ""),
        training_step=trained,
        explore_step=explored,
        seconds=round(sum(float(record.get("seconds") or 0.0) for record in records), 3),
        metrics=changes(curves),
        best=best_step(curves, kept),
        checkpoints=kept,
        rollouts={buffer: _numbers(each) for buffer, each in fates.items()},
        counts=curves.counts,
        tokens={"generated": generated, "trained": round(curves.num_tokens) if curves.num_tokens else None},
        time={part: round(seconds, 3) for part, seconds in curves.seconds.items()},
        commands=tuple(_commands(folder, state, curves, kept)),
        files=tuple(files),
        notes=tuple(notes),
    )


def _records(folder: Path) -> tuple[list[dict[str, Any]], JobState]:
    """Return the records of a job and of its parts, and what they say.

    A part whose record says how it ended is not running, although this process may still hold its lock.
    """
    names = [None] * (folder / RECORD).exists() + [file.stem for file in sorted((folder / PARTS_FOLDER).glob("*.json"))]
    records, parts = [], []
    for name in names:
        try:
            record = read_record(folder, name)
        except CheckpointError:
            record = {}
        part = part_state(folder, name)
        status = record.get("status")
        if status and status != RUNNING and part.status == RUNNING:
            part = PartState(part.name, str(status), "", str(record.get("error") or ""), command=part.command)
        records.append(record)
        parts.append(part)
    return records, JobState(folder, tuple(parts))


def _steps(state: JobState, records: Sequence[Mapping[str, Any]], curves: StageCurves) -> tuple[int, int]:
    """Return the last training step and the last explore step.

    The record has them of a run that ended in order; of any other its metrics.
    """
    trained, explored = (
        max((int(record.get(key) or 0) for record in records), default=0) for key in ("training_step", "explore_step")
    )
    if state.status in ("done", "stopped"):
        return trained, explored
    return curves.num_steps or trained, curves.reward[-1][0] if curves.reward else explored


def _stored_fates(folder: Path, url: str | None) -> tuple[dict[str, Fates], list[str]]:
    try:
        return fates_of(folder, url=url), []
    except TrinityError as error:
        return {}, [f"what happened to the rollouts: {error}"]


def _numbers(fates: Fates) -> dict[str, int]:
    ended = sorted(fates.ended.items(), key=lambda item: (item[0] != "trained", item[0]))
    return {"issued": fates.issued, **dict(ended), "waiting": fates.waiting}


def _commands(
    folder: Path, state: JobState, curves: StageCurves, kept: Sequence[KeptCheckpoint]
) -> Iterator[NextCommand]:
    job, database = str(folder), own_database(folder)
    for part in state.parts:
        if part.status not in ("done", RUNNING) and part.command:
            words = ["trinity", "resume", job, *(["--part", part.name] if part.name else [])]
            yield NextCommand("resume", shlex.join(words))
    if curves.has_fates:
        yield NextCommand("show", shlex.join(["trinity", "show", job]))
    elif (name := curves.main_evaluation) is not None:
        yield NextCommand("show", shlex.join(["trinity", "show", job, "--eval", _taskset(name)]))
    if curves.has_fates:
        if database.exists():
            yield NextCommand("view", shlex.join(["trinity", "view", "--url", str(database)]))
        yield NextCommand("export", shlex.join(["trinity", "export", "experience", job, "-o", "experience.parquet"]))
    if kept:
        yield NextCommand("convert", shlex.join(["trinity", "convert", "checkpoint", job, "-o", "hf_model"]))
    if (folder / "monitor" / "tensorboard").is_dir():
        yield NextCommand("curves", shlex.join(["tensorboard", "--logdir", job]))


def _taskset(evaluation: str) -> str:
    """Return the taskset of an evaluation's metric."""
    return evaluation.split("/", 1)[1].rsplit("/", 2)[0]


def _samples(
    job_dir: Path, curves: StageCurves, url: str | None, *, rollouts: Sequence[LatestRollout] | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the model said, and why there is none.

    The worst and the best responses of the last evaluation, or the newest rollouts where nothing was evaluated.
    """
    try:
        if curves.main_evaluation is not None:
            found = answers_of(job_dir, Asked(number=ALL, order="worst", taskset=_taskset(curves.main_evaluation)))
            half = NUM_SAMPLES // 2
            return (found if len(found) <= NUM_SAMPLES else [*found[:half], *found[-half:]]), []
        if rollouts is not None:
            return [each.facts() for each in rollouts[:NUM_SAMPLES]], []
        if curves.has_fates:
            return samples_of(job_dir, Asked(number=NUM_SAMPLES), url=url), []
    except (TrinityError, OSError, ValueError) as error:
        return [], [f"what the model said: {error}"]
    return [], []
