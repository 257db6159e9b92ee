"""What the folders of jobs say, and how to stop and resume them.

State, progress and who runs them are read from the record, the locks and the metrics alone,
so that it costs a running job nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trinity.common.checkpoint import CheckpointStore
from trinity.common.errors import AlreadyRunningError, CheckpointError, ConfigError, DeadlineError
from trinity.launch.job import LOCK, LOCKS, PARTS_FOLDER, RECORD, RUNNING, SAVED_CONFIG, read_record
from trinity.monitor.jsonl import last_records
from trinity.monitor.monitor import METRICS_FILE
from trinity.utils.locks import holder_of, is_held, note_of, part_lock

KILLED, UNREADABLE, NEW = "killed", "unreadable", "not begun"
# Folders of a job that hold no other job, and are large.
_OWN = re.compile(r"global_step_\d+|log|monitor|buffer|locks|components|debug|model|data")
_HOLDER = re.compile(r"pid (\d+) on (.+) since (.+)")
DEPTH = 5
POLL_S = 0.1
OPTIONS = ("--config", "--plugin-dir", "--set", "--accept-change", "--quiet")


@dataclass(frozen=True)
class PartState:
    """A job, or one of its parts that run apart.

    Attributes:
        name: of the part; empty: the whole job.
        status: `running`, `done`, `stopped`, `failed`, `killed` (it ended without a word), `not begun`, or
            `unreadable`.
        holder: process, machine and time, while it runs.
        error: why it failed.
        training_step: the last one that its record has.
        explore_step: the last one that its record has.
        command: what starts it again, in a shell; empty: not known.
        planned: steps that are planned of the actor whose steps count, by its name; empty: not known.
    """

    name: str
    status: str
    holder: str = ""
    error: str = ""
    training_step: int = 0
    explore_step: int = 0
    command: str = ""
    planned: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        """Whether a process holds it."""
        return bool(self.holder)


@dataclass(frozen=True)
class JobState:
    """A job as its folder tells.

    Attributes:
        folder: of the job.
        parts: the whole job, or its parts.
        metrics: the last line of each actor, by its name.
        checkpoints: their steps.
        updated: when metrics or record were last written, in seconds since 1970.
    """

    folder: Path
    parts: tuple[PartState, ...]
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = ()
    updated: float = 0.0

    @property
    def status(self) -> str:
        """The state of the part that needs a look first."""
        order = (RUNNING, UNREADABLE, "failed", KILLED, "stopped", NEW, "done")
        found = {part.status for part in self.parts}
        return next((status for status in order if status in found), NEW)

    @property
    def has_ended(self) -> bool:
        """Whether it has run, and nothing of it runs now."""
        return self.status in ("done", "stopped", "failed", KILLED)

    def facts(self) -> dict[str, Any]:
        """Return everything in JSON types."""
        return {
            "job": str(self.folder),
            "status": self.status,
            "updated": self.updated,
            "parts": [vars(part) for part in self.parts],
            "steps": {actor: record.get("step") for actor, record in self.metrics.items()},
            "checkpoints": list(self.checkpoints),
        }


def is_job(folder: Path) -> bool:
    """Return whether a folder is that of a job."""
    names = (RECORD, SAVED_CONFIG, LOCK)
    return (folder / LOCKS).is_dir() and any((folder / name).exists() for name in (*names, PARTS_FOLDER))


def job_state(folder: Path) -> JobState:
    """Return the state of a job.

    Raises:
        ConfigError: it is no folder of a job (E1922).
    """
    if not is_job(folder):
        way_out = (
            "give <checkpoint_root_dir>/<project>/<name>[/<stage>]; `trinity runs FOLDER` lists those below a folder"
        )
        raise ConfigError(f"{folder} is no folder of a run; {way_out}", code="E1922")
    names = [file.stem for file in sorted((folder / PARTS_FOLDER).glob("*.json"))]
    names += [name for name in _live_parts(folder) if name not in names]
    has_whole = (folder / RECORD).exists() or is_held(folder / LOCK) or not names
    parts = [part_state(folder, None)] if has_whole else []
    parts += [part_state(folder, name) for name in names]
    files = [folder / METRICS_FILE, folder / RECORD, *(folder / PARTS_FOLDER).glob("*.json")]
    updated = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
    metrics = last_records(folder / METRICS_FILE)
    return JobState(folder, tuple(parts), metrics, tuple(CheckpointStore(folder).steps()), updated)


def jobs_below(folder: Path, *, depth: int = DEPTH) -> Iterator[JobState]:
    """Yield the jobs in a folder and below it, in order of their names.

    Args:
        folder: where to look.
        depth: levels of folders below it.
    """
    yield from map(job_state, filter(is_job, folders_below(folder, depth=depth)))


def folders_below(folder: Path, *, depth: int = DEPTH) -> Iterator[Path]:
    """Yield a folder and those below it that may hold jobs, in order.

    Args:
        folder: where to look.
        depth: levels of folders below it.
    """
    yield folder
    for entry in sorted(_folders(folder)) if depth > 0 else ():
        yield from folders_below(entry, depth=depth - 1)


def stop_job(folder: Path, *, part: str | None = None, timeout_s: float) -> list[PartState]:
    """Ask the processes of a job to stop, and wait until they have.

    Each ends its step and saves, as after Ctrl-C.

    Args:
        folder: of the job.
        part: the one to stop; None: all that run.
        timeout_s: how long to wait for all of them.

    Returns:
        The parts that were stopped, as they were.

    Raises:
        ConfigError: it is no folder of a job (E1922), or has no such part that runs (E8005).
        AlreadyRunningError: it runs on another machine, or as another user (E8006).
        DeadlineError: it has not ended in time (E8007).
    """
    running = ask_to_stop(folder, part=part)
    deadline = time.monotonic() + timeout_s
    while any(is_held(_lock(folder, each)) for each in running):
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"{folder} has not stopped within {timeout_s:g} s ({running[0].holder}): it ends its step first; wait "
                "with a larger --timeout, or ask a second time, which ends it at once and loses the step",
                code="E8007",
            )
        time.sleep(POLL_S)
    return running


def ask_to_stop(folder: Path, *, part: str | None = None) -> list[PartState]:
    """Ask the processes of a job to stop, and do not wait; see `stop_job`.

    Asked a second time, they end at once and lose their step.
    """
    running = [each for each in job_state(folder).parts if each.is_running and part in (None, each.name)]
    if not running:
        what = "nothing of it runs" if part is None else f"no part {part!r} of it runs"
        raise ConfigError(f"{folder}: {what} on this machine; `trinity status {folder}` shows its state", code="E8005")
    for each in running:
        _signal(folder, each)
    return running


def resume_words(folder: Path, *, part: str | None = None) -> tuple[Path, list[str]]:
    """Return the folder and the words of `trinity run` that continue a job.

    They are read from what the job itself has noted; nothing of it but these options is taken.

    Raises:
        ConfigError: it is no folder of a job (E1922), has no such part, or its command is not known (E8008).
        AlreadyRunningError: it runs (E8001).
    """
    parts = [each for each in job_state(folder).parts if part in (None, each.name)]
    if len(parts) != 1:
        names = ", ".join(each.name or "(the whole job)" for each in job_state(folder).parts)
        raise ConfigError(f"{folder} has the parts {names}; choose one with --part", code="E8008")
    (only,) = parts
    if only.is_running:
        raise AlreadyRunningError(f"{folder} runs already ({only.holder}); nothing is to be resumed", code="E8001")
    words = _split(only.command)
    if words[:1] != ["cd"] or words[2:3] != ["&&"] or "run" not in words[3:]:
        raise ConfigError(
            f"{folder} has no record of how it was started; start it again with `trinity run --config FILE`, which "
            "continues from its last checkpoint",
            code="E8008",
        )
    options = words[words.index("run") + 1 :]
    unknown = [word for word in options if word.startswith("-") and word not in OPTIONS]
    if unknown or not options or options[0] != OPTIONS[0]:
        raise ConfigError(
            f"{folder} records options that `trinity run` does not have: {' '.join(unknown or options)}", code="E8008"
        )
    return Path(words[1]), options


def log_files(folder: Path) -> list[Path]:
    """Return the log files of a job, those written last at the end."""
    files = [file for file in (folder / "log").rglob("*.log") if file.is_file()]
    return sorted(files, key=lambda file: (file.stat().st_mtime, file))


def _folders(folder: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and not _OWN.fullmatch(entry.name):
            yield Path(entry.path)


def _live_parts(folder: Path) -> Sequence[str]:
    return [path.stem for path in sorted((folder / LOCKS).glob("*.lock")) if is_held(path)]


def _lock(folder: Path, part: PartState) -> Path:
    return part_lock(folder, part.name) if part.name else folder / LOCK


def part_state(folder: Path, name: str | None) -> PartState:
    """Return the state of a job (None), or of its part `name`."""
    lock = folder / LOCK if name is None else part_lock(folder, name)
    is_live, command = is_held(lock), note_of(lock)
    holder = holder_of(lock) if is_live else ""
    try:
        record = read_record(folder, name)
    except CheckpointError as error:
        return PartState(name or "", RUNNING if is_live else UNREADABLE, holder, str(error.args[0]), command=command)
    status = str(record.get("status") or NEW)
    if is_live:
        status = RUNNING
    elif status == RUNNING:
        status = KILLED
    trained, explored = (int(record.get(step) or 0) for step in ("training_step", "explore_step"))
    why, planned = str(record.get("error") or ""), record.get("planned") or {}
    return PartState(name or "", status, holder, why, trained, explored, command, planned)


def _signal(folder: Path, part: PartState) -> None:
    found = _HOLDER.fullmatch(part.holder)
    if found is None or found[2] != socket.gethostname():
        raise AlreadyRunningError(
            f"{folder} runs elsewhere ({part.holder}); run `trinity stop` on that machine", code="E8006"
        )
    try:
        os.kill(int(found[1]), signal.SIGTERM)
    except ProcessLookupError:  # it has just ended
        return
    except PermissionError as error:
        raise AlreadyRunningError(
            f"{folder} is run by another user ({part.holder}); stop it as that user", code="E8006"
        ) from error


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []
