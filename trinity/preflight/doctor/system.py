"""Cores, memory and the limits that a machine or a container sets."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from trinity.preflight.doctor.look import Look, looked, problem
from trinity.utils.cores import available_cores
from trinity.utils.disk import free_mib
from trinity.utils.memory import shown_bytes

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
SHARED = Path("/dev/shm")
LEAST_SHARED_MIB = 1024.0
LEAST_FILES = 4096
LEAST_FREE_BYTES = 2**30
THREADS = "OMP_NUM_THREADS"


def checks() -> Iterator[Look]:
    """Yield what was found, one look at a time."""
    yield system()
    yield cores()
    yield memory()
    yield shared_memory()
    yield open_files()
    yield compiler()


def system() -> Look:
    """Return the operating system; only Linux is tested (W3820)."""
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() == "Linux":
        return looked("system", found)
    return looked(
        "system", found, problem("W3820", "only Linux is tested", "use a Linux machine or container if it fails")
    )


def cores() -> Look:
    """Return the cores that this process may use (W3821)."""
    have, quota, asked = available_cores(), _quota(), os.environ.get(THREADS, "")
    found = f"{have} physical" + (f", {quota:g} allowed by the container" if quota else "")
    problems = []
    allowed = min(have, quota) if quota else have
    if quota and quota < have:
        few = f"the container may use {quota:g} of {have} cores, and threads are counted by cores"
        problems.append(problem("W3821", few, f"set {THREADS}={max(1, int(quota))}, or give the container more"))
    elif asked.isdigit() and int(asked) > max(1, allowed):
        message = f"{THREADS} is {asked}, and there are {have} cores"
        problems.append(problem("W3821", message, f"unset {THREADS}; a run chooses by the size of the model"))
    return looked("cores", found, *problems)


def memory() -> Look:
    """Return the memory that is free, in the container's limit (W3822)."""
    values = {name: int(rest.split()[0]) * 1024 for name, _, rest in _lines(MEMINFO)}
    total, free = values.get("MemTotal"), values.get("MemAvailable")
    if total is None or free is None:
        return looked("memory", "not known here")
    limit, used = _bytes_of("memory.max"), _bytes_of("memory.current")
    if limit is not None and used is not None and limit < total:
        total, free = limit, min(free, limit - used)
    problems = []
    if free < LEAST_FREE_BYTES:
        message = f"{shown_bytes(free)} of memory are free; imports alone take most of it"
        problems.append(problem("W3822", message, "end other programs, or use a larger machine"))
    return looked("memory", f"{shown_bytes(free)} free of {shown_bytes(total)}", *problems)


def shared_memory() -> Look:
    """Return the space of /dev/shm, which Ray, vLLM and NCCL use (W3823)."""
    if not SHARED.is_dir():
        return looked("shared memory", "none")
    free = free_mib(SHARED)
    problems = []
    if free < LEAST_SHARED_MIB:
        message = f"{free:.0f} MiB are free in {SHARED}; Ray, vLLM and NCCL share more than that between processes"
        problems.append(problem("W3823", message, "start the container with `--shm-size=8g`, or `--ipc=host`"))
    return looked("shared memory", f"{shown_bytes(free * 2**20)} free in {SHARED}", *problems)


def open_files() -> Look:
    """Return how many files a process may open (W3824)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    problems = []
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        message = f"a process may open {soft} files; an endpoint with many clients, and Ray, need more"
        problems.append(
            problem("W3824", message, f"run `ulimit -n {65536 if hard == resource.RLIM_INFINITY else hard}`")
        )
    return looked("open files", "no limit" if soft == resource.RLIM_INFINITY else f"{soft}", *problems)


def compiler() -> Look:
    """Return the C++ compiler, which `torch.compile` calls (W3825)."""
    path = os.environ.get("CXX") or next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if path is not None and shutil.which(path):
        return looked("compiler", str(shutil.which(path)))
    message = "there is no C++ compiler, which torch.compile and vLLM's compiled graphs call"
    return looked("compiler", "none", problem("W3825", message, "install one, such as Debian's package g++"))


def _lines(path: Path) -> Iterator[tuple[str, str, str]]:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return
    yield from (line.partition(":") for line in text.splitlines() if ":" in line)


def _bytes_of(name: str) -> int | None:
    """Return a number of the control group; None: there is none."""
    try:
        text = (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _quota() -> float | None:
    """Return the cores that the control group grants; None: all."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(quota) / int(period) if quota.isdigit() else None
