"""Freed tensors make room for others, of any thread, and a run starts in an environment where they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trinity.runtime import allocator
from trinity.runtime.allocator import VARIABLE, allocator_variables
from trinity.utils.memory import ARENAS_VARIABLE

# Pieces as PyTorch asks for them, in threads that take turns; each holds 144 MiB at once and lives to the end.
PIECES = """\
import ctypes, threading
from pathlib import Path
from trinity.utils.memory import keep_freed_memory

library = ctypes.CDLL(None)

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon:"))

def piece(size):
    found = ctypes.c_void_p()
    assert not library.posix_memalign(ctypes.byref(found), 64, ctypes.c_size_t(size))
    ctypes.memset(found, 1, size)
    return found

def work(is_done):
    for _ in range(2):
        pieces = [piece(size * 2**20) for size in (20, 24, 28, 20, 24, 28)]
        for each in pieces:
            library.free(each)
    is_done.set()
    is_over.wait()

assert keep_freed_memory()
before, is_over = held(), threading.Event()
for _ in range(3):
    is_done = threading.Event()
    threading.Thread(target=work, args=(is_done,), daemon=True).start()
    is_done.wait()
print(held() - before)
is_over.set()
"""
TELL = f"import os\nwith open(os.environ['TOLD'], 'a') as file:\n    print(os.environ.get('{VARIABLE}'), file=file)\n"
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the setting is one of the GNU C library")


def _held(more: dict[str, str]) -> int:
    kept = {name: value for name, value in os.environ.items() if name not in (VARIABLE, ARENAS_VARIABLE)}
    command = [sys.executable, "-c", PIECES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=kept | more)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@on_linux
def test_threads_use_the_memory_that_others_have_freed() -> None:
    assert 140 < _held(allocator_variables({})) < 220  # a small piece may stand where one of 28 MiB would fit


@on_linux
@pytest.mark.skipif("tcache" not in str(allocator_variables({})), reason="this C library joins freed pieces by itself")
def test_an_older_c_library_holds_more_without_the_settings() -> None:
    in_one_pool, in_pools_of_threads = _held({}), _held({ARENAS_VARIABLE: "8"})  # what the user set stays
    assert 300 < in_one_pool < 500 < in_pools_of_threads


def test_what_the_user_set_of_the_c_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, huge = "glibc.malloc.tcache_count=0", "glibc.malloc.hugetlb=1"
    for version, given, wanted in (
        ((2, 36), "", f"{cache}:{huge}"),
        ((2, 36), "glibc.malloc.perturb=1", f"glibc.malloc.perturb=1:{cache}:{huge}"),
        ((2, 36), "glibc.malloc.tcache_count=3", f"glibc.malloc.tcache_count=3:{huge}"),
        ((2, 36), "glibc.malloc.hugetlb=0:glibc.malloc.tcache_count=3", None),
        ((2, 34), "", cache),
        ((2, 39), "", huge),
        (None, "", None),
    ):
        monkeypatch.setattr(allocator, "_libc_version", lambda version=version: version)
        assert allocator_variables({VARIABLE: given}) == ({VARIABLE: wanted} if wanted else {}), (version, given)


TENSORS = """\
import torch
from pathlib import Path
from trinity.utils.memory import keep_freed_memory

keep_freed_memory()
tensors = [torch.ones(2**18) for _ in range(64)]  # 64 of 1 MiB
asked = held = 0
for line in Path("/proc/self/smaps").read_text().splitlines():
    if line.startswith("Rss:"):
        held = int(line.split()[1]) // 1024
    elif line.startswith("VmFlags:") and "hg" in line.split():
        asked += held
print(asked)
"""
MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not MODE.exists() or "[madvise]" not in MODE.read_text(), reason="Linux is asked for no huge pages")
@pytest.mark.skipif("hugetlb" not in str(allocator_variables({})), reason="this C library asks for no huge pages")
def test_huge_pages_are_asked_for_tensors() -> None:
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    asked = []
    for environment in (kept, kept | allocator_variables({})):
        command = [sys.executable, "-c", TENSORS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        asked.append(int(done.stdout))
    assert asked[0] < 16 and asked[1] >= 64, "MiB of pages that the process holds"


@on_linux
@pytest.mark.parametrize("command", [["run", "--help"], ["--version"]], ids=["run", "another"])
def test_only_a_run_starts_again_and_does_as_it_was_told(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(TELL)
    told = tmp_path / "told"
    environment = os.environ | {"TOLD": str(told), "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))}
    environment.pop(VARIABLE, None)
    words = [sys.executable, "-m", "trinity", *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0 and done.stdout, done.stderr
    more = allocator_variables({}) if command[0] == "run" else {}
    assert told.read_text().splitlines() == ["None", *more.values()]
