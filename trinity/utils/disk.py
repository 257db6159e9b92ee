"""Atomic operations of a file system, and the errors of refusals."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trinity.common.errors import EnvironmentProblem

FULL = (errno.ENOSPC, errno.EDQUOT)
_NAMED = re.compile(r"\(os error (\d+)\)")
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def system_error(error: BaseException) -> OSError | None:
    """Return the operating system's error behind `error`, or None.

    It is `error` itself or is named in it, as safetensors does.
    """
    if isinstance(error, OSError):
        return error
    found = _NAMED.search(str(error))
    return None if found is None else OSError(int(found[1]), os.strerror(int(found[1])))


def is_full(error: OSError) -> bool:
    """Return whether there was no space, or no quota, left."""
    return error.errno in FULL


def free_mib(path: Path) -> float:
    """Return the free space of `path`'s file system in MiB; unknown: 0."""
    try:
        status = os.statvfs(path)
    except OSError:
        return 0.0
    return status.f_bavail * status.f_frsize / 2**20


def sync_to_disk(path: Path) -> None:
    """Bring a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two entries atomically.

    Return false if the system or the file system cannot.

    Raises:
        OSError: it could, and failed.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace what `path` holds by `content` atomically.

    A reader sees the old or the new content, also after a crash.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = _made_aside(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def new_file(output: Path) -> Iterator[Path]:
    """Give the place of a file that is named `output` when it is whole.

    Its folder is made. A block that fails leaves nothing.

    Raises:
        EnvironmentProblem: the file exists, or cannot be written (E3601).
    """
    if os.path.lexists(output):
        raise EnvironmentProblem(f"{output} exists already; remove it, or name another --output", code="E3601")
    temporary = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = _made_aside(output)
        yield temporary
        os.replace(temporary, output)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {output}: {error.strerror or error}", code="E3601") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _made_aside(path: Path) -> Path:
    """Return a new, empty file beside `path`.

    Nobody can know its name, and what has that name already is not opened: a link that another user planted in a shared
    folder would be followed.
    """
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return made
