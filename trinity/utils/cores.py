"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def available_cores() -> int:
    """Return the number of physical cores that this process may use.

    MKL uses at most that many threads by default.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len({_hardware_threads(cpu) for cpu in os.sched_getaffinity(0)})


def _hardware_threads(cpu: int) -> str:
    """Return which logical CPUs share the core of `cpu`.

    Its own number if the system does not say.
    """
    try:
        return (TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
