"""The folder of a job: its lock, its record, and rules of resuming."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trinity.common.constants import TRAINER
from trinity.common.errors import AlreadyRunningError, CheckpointError, EnvironmentProblem, ExitCode, TrinityError
from trinity.runtime.process_exit import last_words
from trinity.utils.disk import write_atomically
from trinity.utils.locks import FileLock, holder_of, is_held, part_lock
from trinity.utils.log import redact

RECORD = "run.json"
LOCK = "run.lock"
LOCKS = "locks"
DEBUG_FOLDER = "debug"
"""What `trinity debug` announces; no part of a run."""
RUNNING = "running"
SAVED_CONFIG = "config.yaml"
PARTS_FOLDER = "components"

# Sections and keys whose change between two runs of one job cannot alter what was already learned.
SAFE_CHANGES = (
    "checkpoint_root_dir",
    "continue_from_checkpoint",
    "ignore_validator_suggestions",
    "algorithm.policy_loss_fn_args.ngpus_trainer",
    "plugin_dirs",
    "cluster",
    "log",
    "monitor",
    "service",
    "stages",
    "written",
    "mode",
    "ray_namespace",
    "buffer.explorer_input.eval_tasksets",
    "buffer.trainer_input.experience_buffer.max_read_timeout",
    "explorer.max_timeout",
    "explorer.max_retry_times",
    "explorer.eval_interval",
    "explorer.eval_on_startup",
    "explorer.runner_state_report_interval",
    "explorer.proxy_port",
    "explorer.listen_address",
    "explorer.service_status_check_interval",
    "explorer.min_running_model_num",
    "explorer.rollout_model.api_key",
    "explorer.rollout_model.history_limit",
    "synchronizer.sync_timeout",
    "trainer.name",
    "trainer.save_interval",
    "trainer.trainer_config.trainer.resume_mode",
    "trainer.trainer_config.trainer.resume_from_path",
    "trainer.save_hf_checkpoint",
    "trainer.max_checkpoints_to_keep",
    "trainer.checkpoint_upload_dir",
)

# The length of a run, wherever it was handed down to.
SAFE_NAMES = ("total_steps", "total_epochs", "total_training_steps")


class JobLock:
    """Use of a job folder, given free by the system when the process ends.

    A run that is both explorer and trainer takes the whole job. A part that meets others in the folder, such as an
    explorer in mode explore, takes its own name in it.

    Args:
        job_dir: the folder; created if missing.
        part: name of the part; None takes the whole job.
        command: what starts it again, for the others to tell.

    Raises:
        AlreadyRunningError: another process holds the job (E8001), the name (E8002) or the trainer's place (E8003); the
            message names the holder.
        EnvironmentProblem: the folder cannot be written.
    """

    def __init__(self, job_dir: Path, part: str | None = None, *, command: str = "") -> None:
        self._locks: list[FileLock] = []
        try:
            (job_dir / LOCKS).mkdir(parents=True, exist_ok=True)
            self._take(job_dir, part, command)
        except BlockingIOError as error:
            self.release()
            raise _refused(job_dir, part, has_job=bool(self._locks)) from error
        except OSError as error:
            self.release()
            raise EnvironmentProblem(
                f"checkpoint_root_dir: cannot write {job_dir} ({error.strerror}); choose a writable folder",
                code="E3601",
            ) from error

    def _take(self, job_dir: Path, part: str | None, command: str) -> None:
        note = command if part is None else ""
        self._locks.append(FileLock(job_dir / LOCK, is_shared=part is not None, note=note))
        if part is not None:
            self._locks.append(FileLock(part_lock(job_dir, part), note=command))

    def release(self) -> None:
        """Give the folder free."""
        for lock in self._locks:
            lock.release()


def _refused(job_dir: Path, part: str | None, *, has_job: bool) -> AlreadyRunningError:
    if part is not None and has_job:
        holder = holder_of(part_lock(job_dir, part))
        if part == TRAINER:
            return AlreadyRunningError(
                f"{job_dir} has a live trainer already ({holder}), and a job has one, whatever `trainer.name` says; "
                "wait for it, stop it, or choose another `name` for a job of its own",
                code="E8003",
            )
        return AlreadyRunningError(
            f"{job_dir} has a live part named {part!r} already ({holder}); give this one another name "
            "(explorer.name), or stop the other",
            code="E8002",
        )
    users = [f"{path.stem}: {holder_of(path)}" for path in sorted((job_dir / LOCKS).glob("*.lock")) if is_held(path)]
    return AlreadyRunningError(
        f"{job_dir} is in use by another run ({'; '.join(users) or holder_of(job_dir / LOCK)}); wait for it, stop it, "
        "or choose another `name`",
        code="E8001",
    )


def config_file(job_dir: Path, part: str | None = None) -> Path:
    """Return the file of the configuration of a job, or of a part of it."""
    return job_dir / SAVED_CONFIG if part is None else job_dir / PARTS_FOLDER / f"{part}.yaml"


def record_file(job_dir: Path, part: str | None = None) -> Path:
    """Return where the record of a job, or of one of its parts, is kept."""
    return job_dir / RECORD if part is None else job_dir / PARTS_FOLDER / f"{part}.json"


def read_record(job_dir: Path, part: str | None = None) -> dict[str, Any]:
    """Return the record of earlier runs of this job or part, or empty.

    Raises:
        CheckpointError: the record is there and cannot be read.
    """
    path = record_file(job_dir, part)
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}); restore it, or delete it to continue from the checkpoints alone",
            code="E7014",
        ) from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(record).__name__}", code="E7014")
    return record


def write_record(job_dir: Path, part: str | None = None, **fields: Any) -> None:
    """Merge `fields` into the record of the job or part."""
    _replace_record(job_dir, part, read_record(job_dir, part) | fields)


def _replace_record(job_dir: Path, part: str | None, record: Mapping[str, Any]) -> None:
    write_atomically(record_file(job_dir, part), json.dumps(record, indent=2, sort_keys=True) + "\n")


@dataclass
class Attempt:
    """One run in a job folder, while it lasts.

    Attributes:
        has_begun: whether its parts are ready, so that it may learn; until then it is a start that may fail.
    """

    has_begun: Callable[[], bool] = bool


@contextlib.contextmanager
def recorded(job_dir: Path, part: str | None, text: str, **fields: Any) -> Iterator[Attempt]:
    """Record that the job runs and, unless it ends normally, how it ended.

    A start that fails restores the configuration and the earlier record, to which only the failure is added: nothing
    was learned with its values, and the next start may have others.

    Args:
        job_dir: folder of the job.
        part: name of the part; None for the whole job.
        text: YAML text of the resolved configuration.
        fields: of the record.
    """
    file, attempt, started = config_file(job_dir, part), Attempt(), time.monotonic()
    old_text, old_record = file.read_text(encoding="utf-8") if file.exists() else None, read_record(job_dir, part)

    def end(code: ExitCode, error: str | None) -> None:
        if not attempt.has_begun():
            with contextlib.suppress(OSError):
                _take_back(file, old_text)
                _replace_record(job_dir, part, old_record)
        seconds = round(float(old_record.get("seconds") or 0.0) + time.monotonic() - started, 3)
        record_end(job_dir, part, exit_code=code, error=error, seconds=seconds)

    def end_at_once(status: int) -> None:
        is_asked_for = status in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
        end(ExitCode(status), None if is_asked_for else "ended at once; see the log")

    write_atomically(file, text)
    write_record(job_dir, part, status=RUNNING, exit_code=None, error=None, **fields)
    try:
        with last_words(end_at_once):
            yield attempt
    except BaseException as error:
        code = error.exit_code if isinstance(error, TrinityError) else ExitCode.RUNTIME
        cause = str(error) if isinstance(error, TrinityError) else f"{type(error).__name__}: {error}"
        end(code, redact(cause.strip().split("\n", 1)[0]))
        raise


def _take_back(file: Path, text: str | None) -> None:
    """Give a file its earlier text; None: it was not there."""
    if text is None:
        file.unlink(missing_ok=True)
    else:
        write_atomically(file, text)


def record_end(
    job_dir: Path, part: str | None, *, exit_code: ExitCode, error: str | None = None, **fields: Any
) -> None:
    """Record how an unfinished job or part ended, with other `fields`.

    On a full disk, only the status is written.
    """
    status = "failed" if error is not None else "stopped"
    try:
        write_record(job_dir, part, status=status, exit_code=int(exit_code), error=error, **fields)
    except (OSError, CheckpointError):
        with contextlib.suppress(OSError):
            _mark_ended(record_file(job_dir, part), status)


def _mark_ended(path: Path, status: str) -> None:
    """Overwrite the status, which has the same length: needs no space."""
    old = f'"{RUNNING}"'.encode()
    with open(path, "r+b") as file:
        place = file.read().find(old)
        if place >= 0:
            file.seek(place)
            file.write(f'"{status}"'.encode().ljust(len(old)))


def has_content(job_dir: Path) -> bool:
    """Return whether an earlier run left anything in the folder."""
    return job_dir.is_dir() and any(entry.name not in (LOCK, LOCKS, DEBUG_FOLDER) for entry in job_dir.iterdir())


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested mapping by dotted key."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves.update(flatten(value, f"{name}."))
        else:
            leaves[name] = value
    return leaves


def unsafe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the changes that a resumed run does not allow.

    Each has key, old and new value; after it the run would not be the same.
    """
    before, after = flatten(old), flatten(new)
    changed = [
        (key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    return [change for change in changed if not _is_safe(change[0])]


def _is_safe(key: str) -> bool:
    if key.rsplit(".", 1)[-1] in SAFE_NAMES:
        return True
    return any(key == safe or key.startswith(f"{safe}.") for safe in SAFE_CHANGES)


def check_same_config(
    job_dir: Path,
    new: str,
    *,
    accepted: Sequence[str] = (),
    part: str | None = None,
    derived: Mapping[str, str] | None = None,
    put_back: Callable[[Mapping[str, Any]], str | None] = lambda _: None,
) -> None:
    """Compare the configuration of the job with that of the resuming run.

    Args:
        job_dir: folder with the saved configuration.
        new: YAML text of the resolved configuration of this run.
        accepted: keys and sections whose change the user accepts (`--accept-change`), with what is derived from them.
        part: the one that resumes; None for the whole.
        derived: why the keys have their values that nobody wrote.
        put_back: gives `new` as it would be with other values of some keys; None where they do not go with the rest.

    Raises:
        CheckpointError: a key changed that alters what a resumed run means.
    """
    saved = config_file(job_dir, part)
    if not saved.exists():
        return
    old = yaml.safe_load(saved.read_text(encoding="utf-8")) or {}
    changes = unsafe_changes(old, yaml.safe_load(new) or {})
    refused = [change for change in changes if not _is_accepted(change[0], accepted)]
    if refused and len(refused) < len(changes):
        # What is derived from a key has its old value where the key has its own.
        before = put_back({key: value for key, value, _ in changes if _is_accepted(key, accepted)})
        if before is not None:
            others = {change[0] for change in unsafe_changes(old, yaml.safe_load(before) or {})}
            refused = [change for change in refused if change[0] in others]
    if refused:
        reasons = derived or {}
        lines = "\n".join(
            f"  {key}: {old!r} -> {value!r}" + (f" (derived: {reasons[key]})" if key in reasons else "")
            for key, old, value in refused
        )
        raise CheckpointError(
            f"{job_dir if part is None else saved} was started with another configuration:\n{lines}\n"
            "take the old values, choose another `name`, or accept each with --accept-change KEY, which accepts what "
            "is derived from KEY as well",
            code="E7004",
        )


def accepts_change(key: str, accepted: Sequence[str]) -> bool:
    """Return whether a resumed run may have another value of a key."""
    plain = re.sub(r"\[\d+\]", "", key)  # of entries of lists, as the whole list
    return _is_safe(plain) or _is_accepted(key, accepted) or _is_accepted(plain, accepted)


def _is_accepted(key: str, accepted: Sequence[str]) -> bool:
    return any(key == each or key.startswith(f"{each}.") for each in accepted)
