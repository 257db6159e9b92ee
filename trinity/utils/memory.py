"""Memory of the process.

How the C library keeps freed memory, and tables of what is held.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # names of mallopt(3)
ARENAS_VARIABLE = "MALLOC_ARENA_MAX"
_KEPT_BYTES = 2**30
_LARGEST_MMAP_THRESHOLD = 32 * 2**20


def keep_freed_memory() -> bool:
    """Make the C library keep up to 1 GiB of freed memory, in one pool.

    Return whether it does, instead of giving the memory back.

    A training step frees and allocates the same megabytes again and again. Given back in between, every page of them
    has to be mapped and zeroed again, which costs more than the arithmetic on them.

    By default each thread has a pool (arena) of its own, and does not use what others have freed: engine, trainer and
    backward pass, each a thread, would hold the sum of what they need at different times. A thread that has a pool
    already keeps it, and so do all if the user sets `MALLOC_ARENA_MAX`.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {_TRIM_THRESHOLD: _KEPT_BYTES, _MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD}
    if not os.environ.get(ARENAS_VARIABLE):
        wanted[_ARENA_MAX] = 1
    return all(mallopt(name, value) for name, value in wanted.items())


def shown_bytes(size: float) -> str:
    """Return a number of bytes with three digits, such as `1.25 MiB`.

    The unit is the largest that is not above the number.
    """
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**exponent:
            count = size / 1024**exponent
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
    return f"{size:.0f} bytes"


def memory_lines(table: Mapping[str, int]) -> str:
    """Return a table of bytes as text, one line a row, in MiB."""
    return "\n".join(f"  {name:<22}{size / 2**20:>12.1f} MiB" for name, size in table.items())
