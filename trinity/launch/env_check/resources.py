"""What a process holds: threads, open files, children and memory."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity.launch.env_check.findings import CheckFinding
from trinity.utils.memory import shown_bytes

PROC = Path("/proc/self")
NOTED_BYTES = 1 << 20
"""Growth per rollout from which on memory is worth a warning."""


@dataclass(frozen=True)
class HeldResources:
    """What the process holds at one moment.

    Attributes:
        threads: running threads.
        files: open file descriptors.
        children: child processes.
        memory_bytes: resident memory; 0 where the system does not say.
    """

    threads: int
    files: int
    children: int
    memory_bytes: int

    @classmethod
    def now(cls) -> HeldResources:
        """Return what is held after a collection of garbage."""
        gc.collect()
        return cls(threading.active_count(), len(os.listdir("/dev/fd")), _children(), _resident_bytes())


def _children() -> int:
    return sum(len(file.read_text().split()) for file in PROC.glob("task/*/children"))


def _resident_bytes() -> int:
    file = PROC / "statm"
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.is_file() else 0


def leaks(held: Sequence[HeldResources], *, rollouts: int) -> Iterator[CheckFinding]:
    """Yield what grows from one repetition to the next.

    Args:
        held: after each repetition, the first one as a warm-up.
        rollouts: number of them in one repetition.
    """
    first, last, steps = held[0], held[-1], len(held) - 1
    grown = {
        "threads": last.threads - first.threads,
        "open files": last.files - first.files,
        "child processes": last.children - first.children,
    }
    for what, count in grown.items():
        made = f"{count} more {what} after {steps * rollouts} rollouts"
        if count >= steps:
            yield CheckFinding("leaks", "error", f"{made}: close them at the end of a rollout, or share one")
        else:
            yield CheckFinding("leaks", "ok", made if count > 0 else f"{what}: as many as before")
    sizes = [each.memory_bytes for each in held]
    each_bytes = (sizes[-1] - sizes[0]) / (steps * rollouts)
    is_steady = all(after > before for before, after in zip(sizes, sizes[1:], strict=False))
    said = f"memory: {shown_bytes(max(each_bytes, 0.0))} more per rollout"
    if is_steady and each_bytes >= NOTED_BYTES:
        yield CheckFinding("leaks", "warning", f"{said}, in every repetition: something is kept between rollouts")
    else:
        yield CheckFinding("leaks", "ok", said)
