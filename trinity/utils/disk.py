"""Atomic operations of a file system, and the errors of refusals."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path

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


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` atomically.

    A reader sees the old or the new content, also after a crash.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
