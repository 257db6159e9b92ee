"""What processes leave on the machine ends with their owner, or at the next start where that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.short_run import ROOT
from trinity.common.errors import EnvironmentProblem
from trinity.runtime.scratch import JOB_ENV_VAR, LONGEST_BASE, Scratch, sweep

SHARED = Path("/dev/shm")
# An owner, and a child of it that goes without a word and leaves two blocks, a semaphore and a socket.
PROGRAM = """
import multiprocessing, os, socket, sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from trinity.runtime.scratch import Scratch

def child(names, folder, ident):
    block, lock = SharedMemory(create=True, size=64), multiprocessing.get_context("spawn").Lock()
    socket.socket(socket.AF_UNIX).bind(f"{folder}/socket")
    Path(f"/dev/shm/{ident}-part").touch()
    os._exit(1)

if __name__ == "__main__":
    scratch, spawn = Scratch(), multiprocessing.get_context("spawn")
    ident = f"beside_{scratch.path.name}"
    scratch.claim(ident)
    with scratch.names.given():
        own = spawn.Lock()
        process = spawn.Process(target=child, args=(scratch.names, str(scratch.path), ident))
        process.start()
    process.join()
    print(scratch.path, flush=True)
    sys.stdin.readline()
    scratch.remove()
    print("removed", flush=True)
    sys.stdin.readline()
"""


def left_of(folder: Path) -> set[str]:
    """Return the names in shared memory that belong to a folder, and what is in it."""
    number = folder.name.removeprefix("trinity-")
    names = {file.name for file in SHARED.iterdir() if number in file.name}
    return names | {str(file) for file in folder.rglob("*")} | ({str(folder)} if folder.exists() else set())


@contextmanager
def owner(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield an owner whose child has left what it made, and its folder; the process ends with the block."""
    (tmp_path / "owner.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "owner.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT), JOB_ENV_VAR: "/jobs/one"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        folder = Path(process.stdout.readline().strip())
        assert folder.name.startswith("trinity-")
        yield process, folder
    finally:
        process.kill()
        process.wait(timeout=30)


def test_what_children_left_ends_with_the_folder_and_no_tracker_complains(tmp_path: Path) -> None:
    with owner(tmp_path) as (process, folder):
        assert process.stdin is not None and process.stdout is not None
        found = left_of(folder)
        assert len([name for name in found if name.startswith("sem.")]) == 2, "the child's, and the owner's own"
        assert len([name for name in found if name.startswith("/")]) == 5, "folder, lock, claims with one, socket"
        assert len(found) == 9, f"and two blocks: {found}"
        assert "/jobs/one" in (folder / "lock").read_text(), "who finds it knows the job"
        sweep()
        assert left_of(folder) == found, "its owner lives"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "removed\n"
        assert [name[:4] for name in left_of(folder)] == ["sem."], "the owner still holds its own semaphore"
        _, errors = process.communicate("\n", timeout=30)
        assert (process.returncode, errors, left_of(folder)) == (0, "", set())


def test_what_a_killed_owner_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    with owner(tmp_path) as (process, folder):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        assert len(left_of(folder)) == 9, "with its tracker nobody is left to remove it"
        other = folder.with_name("trinity-nobodys")
        other.mkdir()
        try:
            with Scratch() as mine:
                assert not left_of(folder) and left_of(mine.path) and other.exists()
            assert not left_of(mine.path)
        finally:
            other.rmdir()


def test_a_folder_that_is_too_long_for_sockets_or_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 9)
    long.mkdir()
    with Scratch(str(long)) as scratch:
        assert scratch.path.parent == Path("/tmp") and len(str(scratch.path.parent)) <= LONGEST_BASE
    with pytest.raises(EnvironmentProblem, match="let TMPDIR name a writable one of at most 23 characters") as error:
        Scratch("/proc")
    assert error.value.code == "E3605"
