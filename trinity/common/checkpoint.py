"""Checkpoint directories that are either whole or not there.

A checkpoint is written into a hidden temporary directory beside its place, hashed into a manifest, and renamed. The
truth is the newest directory whose manifest verifies; `latest_checkpointed_iteration.txt` is a hint for other tools.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import xxhash

from trinity.common.errors import CheckpointError
from trinity.utils.disk import exchange, free_mib, is_full, sync_to_disk, system_error
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger

logger = get_logger("checkpoint")

SCHEMA = 1
OTHER_SCHEMA = "E7006"
MANIFEST = "MANIFEST.json"
LATEST = "latest_checkpointed_iteration.txt"
MIN_KEEP = 2
_CHUNK_BYTES = 1 << 20
_STEP_DIR = re.compile(r"global_step_(\d+)")
_STALE = re.compile(r"\.global_step_\d+\.[0-9a-f]+\.tmp")
_REPLACED = re.compile(r"\.(global_step_\d+)\.[0-9a-f]+\.old")

Level = Literal["size", "full"]


class CheckpointStore:
    """The checkpoints `global_step_<N>` of one job folder.

    The caller holds the job's lock.

    Args:
        job_dir: folder of the experiment, made on the first write.
    """

    def __init__(self, job_dir: Path) -> None:
        self.job_dir = job_dir

    def write(self, step: int, fill: Callable[[Path], None], *, meta: dict[str, Any], keep: int) -> Path:
        """Write the checkpoint of `step`; return its directory.

        A kill at any instant leaves the checkpoint whole or absent.

        Args:
            step: training step.
            fill: writes the files into the directory that it is given.
            meta: JSON-able facts for the manifest; `run` names the run, and `is_healthy: false` says that the last
                step was skipped.
            keep: checkpoints to keep, this one included; at least 2 are kept, and 0 keeps all. The newest 2 healthy
                ones stay beyond that.

        Raises:
            CheckpointError: no space left, or another error of the file system.
        """
        final = self._place(step)
        temporary = self._aside(step)
        failpoint("ckpt.before_write")
        try:
            temporary.mkdir(parents=True)
            fill(temporary)
            self._seal(temporary, step, meta)
            self._move(temporary, final)
            self._point_to(step)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            self._put_back()
            cause = system_error(error)
            if cause is not None:
                raise self._explained(cause, step) from error
            raise
        self._retain(keep)
        return final

    def latest(self, *, verify: Level = "full") -> Path | None:
        """Return the newest checkpoint that verifies.

        None if there is no checkpoint at all.

        Falls back to an older one, with a warning, where the newest is damaged.

        Raises:
            CheckpointError: there are checkpoints and none verifies, or the newest is whole and of another version
                of the format (E7006): going back behind it would lose what was learned.
        """
        problems = []
        for step in reversed(self.steps()):
            path = self._place(step)
            try:
                verify_checkpoint(path, level=verify)
            except CheckpointError as error:
                if error.code == OTHER_SCHEMA:
                    raise
                problems.append(str(error))
                continue
            for problem in problems:
                logger.warning("%s; FALLING BACK to %s", problem, path)
            return path
        if problems:
            raise CheckpointError(
                f"no checkpoint under {self.job_dir} can be used: {'; '.join(problems)}; restore one from a copy, or "
                "set continue_from_checkpoint: false to start again",
                code="E7002",
            )
        return None

    def steps(self) -> list[int]:
        """Return the steps of all checkpoint directories, ascending.

        Directories count whether or not they verify.
        """
        if not self.job_dir.is_dir():
            return []
        names = (_STEP_DIR.fullmatch(entry.name) for entry in self.job_dir.iterdir() if entry.is_dir())
        return sorted(int(match.group(1)) for match in names if match)

    def manifest(self, path: Path) -> dict[str, Any]:
        """Return the manifest of the checkpoint at `path`.

        Raises:
            CheckpointError: absent, torn or altered.
        """
        return read_manifest(path)

    def clean(self) -> list[Path]:
        """Remove leftovers of interrupted writes or removals; return them."""
        if not self.job_dir.is_dir():
            return []
        self._put_back()
        stale = [entry for entry in self.job_dir.iterdir() if _STALE.fullmatch(entry.name)]
        for entry in stale:
            logger.info("removing the unfinished checkpoint %s", entry)
            shutil.rmtree(entry)
        return stale

    def _place(self, step: int) -> Path:
        return self.job_dir / f"global_step_{step}"

    def _aside(self, step: int) -> Path:
        return self.job_dir / f".global_step_{step}.{secrets.token_hex(4)}.tmp"

    def _seal(self, temporary: Path, step: int, meta: dict[str, Any]) -> None:
        for path in _files(temporary):
            sync_to_disk(path)
        failpoint("ckpt.after_files")
        document = {
            "schema": SCHEMA,
            "step": step,
            "run": meta.get("run", ""),
            "files": [_describe(temporary, path) for path in _files(temporary)],
            "meta": meta,
        }
        failpoint("ckpt.before_manifest")
        _write_synced(temporary / MANIFEST, _seal_document(document))
        for folder in [temporary, *(p for p in temporary.rglob("*") if p.is_dir())]:
            sync_to_disk(folder)
        failpoint("ckpt.after_manifest")

    def _move(self, temporary: Path, final: Path) -> None:
        failpoint("ckpt.before_rename")
        if not final.exists():
            os.rename(temporary, final)
        elif not exchange(temporary, final):
            # In two steps: killed between them, the next start puts the old one back.
            os.rename(final, temporary.with_suffix(".old"))
            failpoint("ckpt.while_replacing")
            os.rename(temporary, final)
        sync_to_disk(self.job_dir)
        failpoint("ckpt.after_rename")
        shutil.rmtree(temporary, ignore_errors=True)
        self._put_back()

    def _put_back(self) -> None:
        """Restore the name of a checkpoint whose replacement was interrupted.

        It is removed instead if the new checkpoint already has the name.
        """
        for entry in self.job_dir.iterdir() if self.job_dir.is_dir() else ():
            match = _REPLACED.fullmatch(entry.name)
            if match is None:
                continue
            final = self.job_dir / match.group(1)
            if final.exists():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                os.rename(entry, final)
                logger.warning("%s was being replaced; the one before is back in its place", final)

    def _point_to(self, step: int) -> None:
        failpoint("ckpt.before_latest")
        hint = self.job_dir / f".{LATEST}.tmp"
        _write_synced(hint, str(step).encode())
        os.replace(hint, self.job_dir / LATEST)
        sync_to_disk(self.job_dir)
        failpoint("ckpt.after_latest")

    def _retain(self, keep: int) -> None:
        if keep <= 0:
            return
        sound = [step for step in self.steps() if _is_sound(self._place(step))]
        kept = sound[-max(keep, MIN_KEEP) :]
        healthy = [step for step in sound if self.manifest(self._place(step))["meta"].get("is_healthy", True)]
        for step in self.steps():
            if kept and step < kept[0] and len(kept) >= MIN_KEEP and step not in healthy[-MIN_KEEP:]:
                failpoint("ckpt.retention")
                self._remove(self._place(step))

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint so that it is never seen half removed."""
        aside = self._aside(int(path.name.rpartition("_")[2]))
        os.rename(path, aside)
        shutil.rmtree(aside)

    def _explained(self, error: OSError, step: int) -> CheckpointError:
        if is_full(error):
            return CheckpointError(
                f"no space left to write the checkpoint of step {step} under {self.job_dir} "
                f"({free_mib(self.job_dir):.1f} MiB are free without it); older checkpoints are untouched; free some "
                "space or lower trainer.max_checkpoints_to_keep",
                code="E7022",
            )
        return CheckpointError(
            f"cannot write the checkpoint of step {step} under {self.job_dir}: {error}", code="E7021"
        )


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint directory `path`.

    It is verified against its own checksum.

    Raises:
        CheckpointError: absent, torn, altered, or of another schema.
    """
    try:
        data = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise _damaged(path, f"cannot read {MANIFEST}: {error}") from error
    try:
        document = json.loads(data)
        document.pop("checksum", None)
        is_sound = _seal_document(document) == data
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{MANIFEST} is torn") from error
    if not is_sound:
        raise _damaged(path, f"{MANIFEST} does not match its checksum")
    if document["schema"] != SCHEMA:
        raise CheckpointError(
            f"checkpoint {path} has schema {document['schema']}, this version reads {SCHEMA}; use the version of "
            "Trinity that wrote it, or set continue_from_checkpoint: false to start again",
            code=OTHER_SCHEMA,
        )
    return document


def verify_checkpoint(path: Path, *, level: Level = "full") -> dict[str, Any]:
    """Check the files of the checkpoint at `path`; return its manifest.

    Args:
        path: a directory `global_step_<N>`.
        level: `size` compares sizes, `full` hashes every file as well.

    Raises:
        CheckpointError: the message names the directory and the first file that does not match.
    """
    document = read_manifest(path)
    if path.name != f"global_step_{document['step']}":
        raise _damaged(path, f"its manifest is of step {document['step']}")
    for row in document["files"]:
        name = PurePosixPath(row["path"])
        if name.is_absolute() or ".." in name.parts:
            raise _damaged(path, f"{row['path']} lies outside")
        file = path / name
        if not file.is_file() or file.stat().st_size != row["size"]:
            size = f"{file.stat().st_size} bytes" if file.is_file() else "nothing"
            raise _damaged(path, f"{name} should have {row['size']} bytes, found {size}")
        if level == "full" and _hash(file) != row["xxh3_128"]:
            raise _damaged(path, f"{name} does not match its checksum")
    return document


def hash_tree(path: Path) -> str:
    """Return one xxh3_128 over the names and contents of files.

    The files are those under `path`, or the file `path` itself.
    """
    digest = xxhash.xxh3_128()
    for file in [path] if path.is_file() else _files(path):
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        digest.update(f"{name}\0{_hash(file)}\n".encode())
    return digest.hexdigest()


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {path} is damaged: {what}", code="E7001")


def _is_sound(path: Path) -> bool:
    try:
        verify_checkpoint(path, level="size")
    except CheckpointError as error:
        logger.warning("%s; it does not count as one to keep", error)
        return False
    return True


def _seal_document(document: dict[str, Any]) -> bytes:
    body = json.dumps(document, indent=1, sort_keys=True, allow_nan=False)
    checksum = xxhash.xxh3_128_hexdigest(body.encode())
    return json.dumps(document | {"checksum": checksum}, indent=1, sort_keys=True).encode()


def _describe(root: Path, path: Path) -> dict[str, Any]:
    return {"path": path.relative_to(root).as_posix(), "size": path.stat().st_size, "xxh3_128": _hash(path)}


def _files(root: Path) -> Iterator[Path]:
    return iter(sorted(path for path in root.rglob("*") if path.is_file()))


def _hash(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
