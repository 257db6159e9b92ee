"""Which GPUs are there, and who sees them, without loading PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN: Mapping[str, str] = {VISIBLE: ""}
"""Environment of a process that sees no GPU."""


def has_gpu() -> bool:
    """Return whether an NVIDIA device exists and is visible.

    CUDA_VISIBLE_DEVICES can hide it.
    """
    return gpu_count() > 0


def gpu_count() -> int:
    """Return the NVIDIA devices that a process started here sees."""
    return len(visible_gpus(device_count(), os.environ.get(VISIBLE)))


def device_count() -> int:
    """Return the NVIDIA device files of this machine."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def visible_gpus(there: int, visible: str | None) -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES leaves of the GPUs of a machine.

    CUDA takes the list up to the first entry that names no device, or one a second time.

    Args:
        there: GPUs of the machine.
        visible: the variable; None: not set. Names such as `GPU-8f6a...` are taken to exist.
    """
    if visible is None:
        return [str(index) for index in range(there)]
    taken: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        is_there = int(entry) < there if entry.isdigit() else entry.startswith(("GPU-", "MIG-"))
        if not is_there or entry in taken:
            break
        taken.append(entry)
    return taken if there else []


def gpu_table(asked: Mapping[str, float], have: float) -> str:
    """Return a table of what asks for how many GPUs, and what there is."""
    width = max(len("asked in all"), *map(len, asked)) if asked else len("asked in all")
    rows = [*asked.items(), ("asked in all", sum(asked.values())), ("have", have)]
    return "\n".join(f"  {name:<{width}}  {count:g}" for name, count in rows)
