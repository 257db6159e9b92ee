"""The folder of a job: its lock, its record, and whether a run may continue in it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trinity.common.errors import AlreadyRunningError, CheckpointError, EnvironmentProblem

RECORD = "run.json"
LOCK = "run.lock"
SAVED_CONFIG = "config.yaml"

# Sections and keys whose change between two runs of one job cannot alter what was already learnt.
SAFE_CHANGES = (
    "checkpoint_root_dir",
    "continue_from_checkpoint",
    "ignore_validator_suggestions",
    "cluster",
    "log",
    "monitor",
    "service",
    "stages",
    "mode",
    "ray_namespace",
    "buffer.explorer_input.eval_tasksets",
    "buffer.trainer_input.experience_buffer.max_read_timeout",
    "explorer.max_timeout",
    "explorer.max_retry_times",
    "explorer.eval_interval",
    "explorer.eval_on_startup",
    "explorer.runner_state_report_interval",
    "synchronizer.sync_timeout",
    "trainer.save_interval",
    "trainer.save_hf_checkpoint",
    "trainer.max_checkpoints_to_keep",
)

# The length of a run, wherever it was handed down to.
SAFE_NAMES = ("total_steps", "total_epochs", "total_training_steps")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` so that a reader sees the old or the new content, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class JobLock:
    """Exclusive use of a job folder by one process, released by the system when the process ends.

    Args:
        job_dir: the folder; created if missing.

    Raises:
        AlreadyRunningError: another process holds it; the message names the holder.
        EnvironmentProblem: the folder cannot be written.
    """

    def __init__(self, job_dir: Path) -> None:
        try:
            job_dir.mkdir(parents=True, exist_ok=True)
            self._file = open(job_dir / LOCK, "a+", encoding="utf-8")  # noqa: SIM115  open as long as it is held
        except OSError as error:
            raise EnvironmentProblem(
                f"checkpoint_root_dir: cannot write {job_dir} ({error.strerror}); choose a writable folder",
                code="E3601",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise AlreadyRunningError(
                f"{job_dir} is in use by another run ({holder}); wait for it, stop it, or choose another `name`",
                code="E8001",
            ) from error
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        self._file.flush()

    def release(self) -> None:
        """Give the folder free."""
        self._file.close()


def read_record(job_dir: Path) -> dict[str, Any]:
    """Return what earlier runs recorded of this job; empty when there is none.

    Raises:
        CheckpointError: the record is there and cannot be read.
    """
    path = job_dir / RECORD
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


def write_record(job_dir: Path, **fields: Any) -> None:
    """Merge `fields` into the job's record."""
    record = read_record(job_dir) | fields
    write_atomically(job_dir / RECORD, json.dumps(record, indent=2, sort_keys=True) + "\n")


def has_content(job_dir: Path) -> bool:
    """Return whether an earlier run left anything in the folder."""
    return job_dir.is_dir() and any(entry.name != LOCK for entry in job_dir.iterdir())


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
    """Return key, old and new value of each change after which a resumed run would not be the same run."""
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


def check_same_config(job_dir: Path, new: str, *, accepted: Sequence[str] = ()) -> None:
    """Compare the configuration that the job was started with and the one that shall resume it.

    Args:
        job_dir: folder with the saved `config.yaml`.
        new: YAML text of the resolved configuration of this run.
        accepted: keys whose change the user accepts (`--accept-change`).

    Raises:
        CheckpointError: a key changed that alters what a resumed run means.
    """
    saved = job_dir / SAVED_CONFIG
    if not saved.exists():
        return
    changes = [
        change
        for change in unsafe_changes(yaml.safe_load(saved.read_text(encoding="utf-8")) or {}, yaml.safe_load(new) or {})
        if change[0] not in accepted
    ]
    if changes:
        lines = "\n".join(f"  {key}: {old!r} -> {value!r}" for key, old, value in changes)
        raise CheckpointError(
            f"{job_dir} was started with another configuration:\n{lines}\n"
            f"take the old values, choose another `name`, or accept each with --accept-change KEY",
            code="E7004",
        )
