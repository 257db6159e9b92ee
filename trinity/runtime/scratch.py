"""What a process and its children leave on the machine.

These are files, sockets, and names in shared memory.

Libraries put them where everybody's are, under names that say nothing, and remove them at an orderly end only. Here
they have a folder of the process that caused them, which is locked as long as that process lives: what has no owner any
more is removed by whoever comes next, at a start or at an end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import process, resource_tracker, shared_memory, synchronize
from pathlib import Path
from typing import Any

from trinity.common.errors import EnvironmentProblem
from trinity.runtime.process_exit import die_with
from trinity.utils.locks import FileLock, is_held
from trinity.utils.log import get_logger

JOB_ENV_VAR = "TRINITY_JOB"
"""Tells the processes of a run the folder of its job, which the lock of a scratch folder names."""

LONGEST_BASE = 23
"""Characters of a folder under which there is room for a socket of Ray: 103 bytes on macOS, 107 on Linux."""

_NAME = re.compile(r"trinity-[0-9a-f]{7}")
_SHARED_MEMORY = Path("/dev/shm")
_LOCK = "lock"
_CLAIMS = "claims"
_OWN = "own"
_REMOVE_S = 5.0
_UNLOCKED_S = 60.0  # its owner has just made it, and locks it next


class Scratch:
    """A folder for what this process and its children leave behind.

    It is removed at the end of the `with` block.

    Args:
        base: where to make it; empty: where temporary files are.

    Attributes:
        path: of the folder; short enough for sockets in it.
        names: what gives names in shared memory to a process.

    Raises:
        EnvironmentProblem: no folder for temporary files can be written (E3605).
    """

    def __init__(self, base: str = "") -> None:
        sweep()
        self._pid = os.getpid()
        self.path = _made(base)
        self.names = SharedNames(_prefix(self.path))
        self._lock = FileLock(self.path / _LOCK, note=os.environ.get(JOB_ENV_VAR, ""))
        (self.path / _CLAIMS).mkdir()
        atexit.register(self.remove)

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

    def claim(self, beginning: str) -> None:
        """Let the folder own shared memory whose name starts `<beginning>-`."""
        (self.path / _CLAIMS / beginning).touch()

    def remove(self) -> None:
        """Remove the folder and what belongs to it.

        Call it after the processes that used the folder have ended.
        """
        atexit.unregister(self.remove)
        if os.getpid() == self._pid:  # a fork of the owner owns nothing
            _remove(self.path, is_own=True)
            self._lock.release()


class SharedNames(dict[str, Any]):
    """A prefix of names in shared memory.

    vLLM's configuration carries it to vLLM's processes.

    A process that unpickles it gives the prefix to all that it makes in shared memory from then on, and ends with
    the process that pickled it, its parent, even while it starts or is stopped. As a mapping it is empty, because vLLM
    finds its caches of compiled code by the content of that configuration, which the prefix must not change.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.prefix, os.getpid())

    def __deepcopy__(self, memo: object) -> SharedNames:
        return self

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Apply the prefix to semaphores made by this process in the block.

        They are marked as its own.
        """
        config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
        before, config["semprefix"] = config["semprefix"], f"/{self.prefix}{_OWN}"
        try:
            yield
        finally:
            config["semprefix"] = before


def _received(prefix: str, parent: int) -> SharedNames:
    die_with(parent)
    # The standard library has no other way to say how names begin, and a child takes over the prefix of its parent.
    synchronize.SemLock._make_name = staticmethod(lambda: f"/{prefix}{os.urandom(4).hex()}")  # type: ignore[attr-defined]
    shared_memory._SHM_NAME_PREFIX = f"/{prefix}"  # type: ignore[attr-defined]
    return SharedNames(prefix)


def sweep() -> None:
    """Remove folders of dead owners that did not clean up.

    What belongs to the folders is removed too.
    """
    for base in _bases():
        for folder in base.glob("trinity-*"):
            with contextlib.suppress(OSError):  # somebody else removes it
                if _is_left(folder):
                    get_logger("launch").debug("removing %s, whose owner is gone", folder)
                    _remove(folder)


def _bases() -> dict[Path, None]:
    """Return the folders in which scratch folders may be."""
    named = (os.environ.get("RAY_TMPDIR", ""), os.environ.get("VLLM_RPC_BASE_PATH", ""), _temporary(), "/tmp")
    return dict.fromkeys(Path(name) for name in named if name)


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # no disk has room for the file with which it tries
        return "/tmp"


def _made(base: str) -> Path:
    wanted = [base or _temporary(), "/tmp"]
    short = [each for each in wanted if len(os.path.abspath(each)) <= LONGEST_BASE]
    try:
        path = Path(os.path.abspath(short[0])) / f"trinity-{os.urandom(4).hex()[:7]}"
        path.mkdir(mode=0o700)
    except OSError as error:
        raise EnvironmentProblem(
            f"no folder for temporary files can be made in {short[0]} ({error.strerror}); let TMPDIR name a writable "
            f"one of at most {LONGEST_BASE} characters, so that sockets have room in it",
            code="E3605",
        ) from error
    return path


def _is_left(folder: Path) -> bool:
    status = folder.lstat()
    if not _NAME.fullmatch(folder.name) or status.st_uid != os.getuid() or folder.is_symlink():
        return False
    if not (folder / _LOCK).exists():
        return time.time() - status.st_mtime > _UNLOCKED_S
    return not is_held(folder / _LOCK)


def _prefix(folder: Path) -> str:
    """Return the prefix of names that belong to a folder.

    The standard library leaves room for nine characters.
    """
    return f"t{folder.name.removeprefix('trinity-')}_"


def _remove(folder: Path, *, is_own: bool = False) -> None:
    prefix = _prefix(folder)
    _forget(prefix, is_own=is_own)
    # vLLM's processes meet at a file, and the names of what they share in memory begin with the name of that file.
    claims = [file.name for file in (*folder.glob(f"{_CLAIMS}/*"), *folder.glob("vllm_dist_*"))]
    for file in _in_shared_memory(*(f"{claim}-" for claim in claims)):
        file.unlink(missing_ok=True)
    end = time.monotonic() + _REMOVE_S
    while folder.exists() and time.monotonic() < end:  # processes that end may still write
        shutil.rmtree(folder, ignore_errors=True)


def _forget(prefix: str, *, is_own: bool) -> None:
    """Remove shared memory whose name starts with `prefix`.

    What this process made and holds itself is removed when its holder ends.
    """
    for kind, beginning in (("semaphore", f"sem.{prefix}"), ("shared_memory", prefix)):
        for file in _in_shared_memory(beginning):
            if is_own and file.name.startswith(f"{beginning}{_OWN}"):
                continue
            file.unlink(missing_ok=True)
            if is_own:  # their makers registered them with this process's tracker, and ended without unregistering
                resource_tracker.unregister(f"/{file.name.removeprefix('sem.')}", kind)


def _in_shared_memory(*beginnings: str) -> list[Path]:
    return [file for file in _SHARED_MEMORY.glob("*") if file.name.startswith(beginnings)]
