"""What this machine has and lacks, whatever is to run on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from trinity.preflight.doctor import folders, gpus, network, packages, system
from trinity.preflight.doctor.look import Look


def looks(folder: Path) -> Iterator[Look]:
    """Yield what is found on this machine, one look at a time.

    Nothing is left behind, no other machine is asked, and neither PyTorch nor vLLM is imported.

    Args:
        folder: where runs are to write.
    """
    yield from chain(
        packages.checks(), gpus.checks(), system.checks(), folders.checks(folder), network.checks()
    )  # fmt: skip
