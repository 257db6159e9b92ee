"""The folder of a job: its lock, its record, and whether a run may continue in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trinity.common.errors import AlreadyRunningError, CheckpointError, EnvironmentProblem
from trinity.utils.locks import FileLock, component_lock, holder_of, is_held

RECORD = "run.json"
LOCK = "run.lock"
LOCKS = "locks"
SAVED_CONFIG = "config.yaml"
COMPONENTS = "components"

# Sections and keys whose change between two runs of one job cannot alter what was already learnt.
SAFE_CHANGES = (
    "checkpoint_root_dir",
    "continue_from_checkpoint",
    "ignore_validator_suggestions",
    "plugin_dirs",
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
    "trainer.trainer_config.trainer.resume_mode",
    "trainer.trainer_config.trainer.resume_from_path",
    "trainer.save_hf_checkpoint",
    "trainer.max_checkpoints_to_keep",
)

# The length of a run, wherever it was handed down to.
SAFE_NAMES = ("total_steps", "total_epochs", "total_training_steps")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` so that a reader sees the old or the new content, also after a crash."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class JobLock:
    """Use of a job folder, given free by the system when the process ends.

    A run that is both explorer and trainer takes the whole job. A component that meets others in the folder, such as an
    explorer in mode explore, takes its own name in it.

    Args:
        job_dir: the folder; created if missing.
        component: name of the component; None takes the whole job.
        command: what starts the component again, for the others to tell.

    Raises:
        AlreadyRunningError: another process holds the job (E8001) or the name (E8002); the message names the holder.
        EnvironmentProblem: the folder cannot be written.
    """

    def __init__(self, job_dir: Path, component: str | None = None, *, command: str = "") -> None:
        self._locks: list[FileLock] = []
        try:
            (job_dir / LOCKS).mkdir(parents=True, exist_ok=True)
            self._take(job_dir, component, command)
        except BlockingIOError as error:
            self.release()
            raise _refused(job_dir, component, has_job=bool(self._locks)) from error
        except OSError as error:
            self.release()
            raise EnvironmentProblem(
                f"checkpoint_root_dir: cannot write {job_dir} ({error.strerror}); choose a writable folder",
                code="E3601",
            ) from error

    def _take(self, job_dir: Path, component: str | None, command: str) -> None:
        self._locks.append(FileLock(job_dir / LOCK, is_shared=component is not None))
        if component is not None:
            self._locks.append(FileLock(component_lock(job_dir, component), note=command))

    def release(self) -> None:
        """Give the folder free."""
        for lock in self._locks:
            lock.release()


def _refused(job_dir: Path, component: str | None, *, has_job: bool) -> AlreadyRunningError:
    if component is not None and has_job:
        holder = holder_of(component_lock(job_dir, component))
        return AlreadyRunningError(
            f"{job_dir} has a live component named {component!r} already ({holder}); give this one another name "
            "(explorer.name), or stop the other",
            code="E8002",
        )
    parts = [f"{path.stem}: {holder_of(path)}" for path in sorted((job_dir / LOCKS).glob("*.lock")) if is_held(path)]
    return AlreadyRunningError(
        f"{job_dir} is in use by another run ({'; '.join(parts) or holder_of(job_dir / LOCK)}); wait for it, stop it, "
        "or choose another `name`",
        code="E8001",
    )


def config_file(job_dir: Path, component: str | None = None) -> Path:
    """Return where the configuration of a job, or of one of its components, is kept."""
    return job_dir / SAVED_CONFIG if component is None else job_dir / COMPONENTS / f"{component}.yaml"


def record_file(job_dir: Path, component: str | None = None) -> Path:
    """Return where the record of a job, or of one of its components, is kept."""
    return job_dir / RECORD if component is None else job_dir / COMPONENTS / f"{component}.json"


def read_record(job_dir: Path, component: str | None = None) -> dict[str, Any]:
    """Return what earlier runs recorded of this job or component; empty when there is none.

    Raises:
        CheckpointError: the record is there and cannot be read.
    """
    path = record_file(job_dir, component)
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


def write_record(job_dir: Path, component: str | None = None, **fields: Any) -> None:
    """Merge `fields` into the record of the job or component."""
    record = read_record(job_dir, component) | fields
    write_atomically(record_file(job_dir, component), json.dumps(record, indent=2, sort_keys=True) + "\n")


def has_content(job_dir: Path) -> bool:
    """Return whether an earlier run left anything in the folder."""
    return job_dir.is_dir() and any(entry.name not in (LOCK, LOCKS) for entry in job_dir.iterdir())


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


def check_same_config(job_dir: Path, new: str, *, accepted: Sequence[str] = (), component: str | None = None) -> None:
    """Compare the configuration that the job was started with and the one that shall resume it.

    Args:
        job_dir: folder with the saved configuration.
        new: YAML text of the resolved configuration of this run.
        accepted: keys whose change the user accepts (`--accept-change`).
        component: the part of the job that resumes; None for the whole.

    Raises:
        CheckpointError: a key changed that alters what a resumed run means.
    """
    saved = config_file(job_dir, component)
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
            f"{job_dir if component is None else saved} was started with another configuration:\n{lines}\n"
            f"take the old values, choose another `name`, or accept each with --accept-change KEY",
            code="E7004",
        )
