"""An environment in which the C library suits tensors.

**Joined pieces.** PyTorch asks for memory that begins at a multiple of 64 bytes. The GNU C library before 2.39 cuts it
out of a larger piece and puts both remainders, some 50 bytes each, into the thread's cache of small pieces. There they
are not joined with the tensor's piece when that is freed, so that a tensor of the same size does not fit where the last
one was: a process holds up to twice what it uses (https://sourceware.org/bugzilla/show_bug.cgi?id=30723). Without that
cache it does not.

**Huge pages.** A step on a CPU passes over some hundred megabytes of activations, keys and values. The processor looks
up every page of 4 KiB of them, on a virtual machine in two tables. With pages of 2 MiB, which the GNU C library asks
Linux for since 2.35, it hardly ever does. Linux gives them where `/sys/kernel/mm/transparent_hugepage/enabled` says
`madvise`.

Both are read when a process starts, and no call changes them later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
_CACHE, _HUGE = "glibc.malloc.tcache_count", "glibc.malloc.hugetlb"
_MENDED, _ASKS_FOR_HUGE = (2, 39), (2, 35)
_PROGRAMS = ("trinity", "__main__.py")  # the command, and `python -m trinity`


def allocator_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what `environment` lacks; empty: nothing, or the user set it.

    It is empty with other C libraries.
    """
    version, tunables = _libc_version(), environment.get(VARIABLE, "")
    if version is None:
        return {}
    wanted = {_CACHE: 0} if version < _MENDED else {}
    wanted |= {_HUGE: 1} if version >= _ASKS_FOR_HUGE else {}
    missing = [f"{name}={value}" for name, value in wanted.items() if name not in tunables]
    return {VARIABLE: ":".join(filter(None, (tunables, *missing)))} if missing else {}


def begin_again() -> None:
    """Restart the program of a run if its environment lacks a variable.

    This is done for `trinity run` alone, before it has imported anything: same process id, same arguments, some 30 ms.
    """
    if sys.argv[1:2] != ["run"] or Path(sys.argv[0]).name not in _PROGRAMS or not sys.executable:
        return
    more = allocator_variables(os.environ)
    if more:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | more)


def _libc_version() -> tuple[int, ...] | None:
    """Return the version of the GNU C library; None: it is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, AttributeError):
        return None
    return tuple(map(int, version.split(".")[:2])) if name == "glibc" else None
