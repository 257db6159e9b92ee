"""The folder of an export, written so that a killed one continues.

```
OUTPUT.part/conversion.json        what is converted, and which files are whole
            model-00001-of-N...    each written under another name, then renamed
OUTPUT/                            the same folder, renamed when it is complete
```
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trinity.common.errors import AlreadyRunningError, CheckpointError
from trinity.utils.disk import free_mib, is_full, sync_to_disk, system_error, write_atomically
from trinity.utils.failpoints import failpoint
from trinity.utils.locks import FileLock
from trinity.utils.log import get_logger

logger = get_logger("launch")

RECORD = "conversion.json"
_SCHEMA = 1


@dataclass
class UnfinishedFolder:
    """A folder that is being written.

    Attributes:
        final: its name when it is complete.
        request: what decides its content, as JSON.
        files: size and SHA-256 of the files that are whole, by name.
        num_kept: how many of them an earlier, interrupted conversion wrote.
        is_complete: an earlier conversion of the same has ended.
    """

    final: Path
    request: Mapping[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    num_kept: int = 0
    is_complete: bool = False

    @property
    def part(self) -> Path:
        """Where it is written until it is complete."""
        return self.final.with_name(self.final.name + ".part")

    def has(self, name: str) -> bool:
        """Return whether a file is whole already."""
        return name in self.files

    def write(self, name: str, fill: Callable[[Path], object]) -> None:
        """Write a file that is then whole or not there.

        Raises:
            CheckpointError: no space is left, or the file cannot be written (E7055).
        """
        target = self.part / name
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fill(temporary)
            sync_to_disk(temporary)
            failpoint("convert.before_rename")
            self.files[name] = {"size": temporary.stat().st_size, "sha256": sha256_of(temporary)}
            os.replace(temporary, target)
            sync_to_disk(target.parent)
            self._note()
        except Exception as error:
            temporary.unlink(missing_ok=True)
            cause = system_error(error)
            if cause is None:
                raise
            why = f"no space left ({free_mib(self.part):.1f} MiB are free)" if is_full(cause) else str(cause)
            raise CheckpointError(
                f"cannot write {target}: {why}; what is there stays, and the same command continues with it",
                code="E7055",
            ) from error
        failpoint("convert.after_file")

    def finish(self) -> None:
        """Give the complete folder its name."""
        os.replace(self.part, self.final)
        sync_to_disk(self.final.parent)
        self.is_complete = True

    def _note(self) -> None:
        document = {"schema": _SCHEMA, "request": self.request, "files": dict(sorted(self.files.items()))}
        write_atomically(self.part / RECORD, json.dumps(document, indent=1, sort_keys=True) + "\n")


@contextmanager
def opened(final: Path, request: Mapping[str, Any]) -> Iterator[UnfinishedFolder]:
    """Begin a folder, or continue one that was begun with the same request.

    Raises:
        CheckpointError: the folder is there with other content (E7055).
        AlreadyRunningError: another process writes it (E8006).
    """
    output = UnfinishedFolder(final, json.loads(json.dumps(request)))
    output.part.parent.mkdir(parents=True, exist_ok=True)
    lock_file = final.with_name(f".{final.name}.lock")
    try:
        lock = FileLock(lock_file, note="trinity convert checkpoint")
    except BlockingIOError as error:
        raise AlreadyRunningError(f"another process writes {final}; wait for it, or end it", code="E8006") from error
    try:
        if final.exists() and (not final.is_dir() or any(final.iterdir())):
            _take_complete(output)
        else:
            _begin(output)
        yield output
    finally:
        lock_file.unlink(missing_ok=True)
        lock.release()


def _take_complete(output: UnfinishedFolder) -> None:
    """Take what an earlier conversion of the same wrote."""
    known = _known(output.final, output.request)
    if known is None or _lacking(output.final, known):
        raise CheckpointError(
            f"{output.final} is there already, and is not what this command would write; give another folder, or "
            "remove it",
            code="E7055",
        )
    output.files, output.num_kept, output.is_complete = known, len(known), True


def _begin(output: UnfinishedFolder) -> None:
    """Keep what an interrupted conversion of the same left, and nothing else."""
    if output.final.is_dir():
        output.final.rmdir()
    known = _known(output.part, output.request) if output.part.is_dir() else None
    if known is None:
        if output.part.is_dir():
            logger.warning("%s is of another conversion, or its record is torn; it is written again", output.part)
            shutil.rmtree(output.part)
        output.part.mkdir()
    else:
        lacking = _lacking(output.part, known)
        output.files = {name: facts for name, facts in known.items() if name not in lacking}
        output.num_kept = len(output.files)
        for file in [file for file in output.part.rglob("*") if file.is_file()]:
            if file.relative_to(output.part).as_posix() not in {*output.files, RECORD}:
                file.unlink()


def _known(folder: Path, request: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the files that a folder's record calls whole; None: of another."""
    try:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if document["schema"] != _SCHEMA or document["request"] != request:
            return None
        files: dict[str, dict[str, Any]] = {str(name): dict(facts) for name, facts in document["files"].items()}
        return files
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _lacking(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the names of files that are not as they were written."""
    return {
        name
        for name, facts in files.items()
        if not (folder / name).is_file()
        or (folder / name).stat().st_size != facts["size"]
        or sha256_of(folder / name) != facts["sha256"]
    }


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with file.open("rb") as opened_file:
        return hashlib.file_digest(opened_file, "sha256").hexdigest()
