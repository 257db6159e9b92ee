"""What this machine needs at this moment for the libraries that every command imports: the measure of quick starts."""

from __future__ import annotations

import resource
import subprocess
import sys

LIBRARIES = "import typer, yaml, pydantic, omegaconf"


def import_seconds() -> float:
    """Return the CPU seconds of a Python that imports them, the least of three."""
    seconds = []
    for _ in range(3):
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", LIBRARIES], check=True, timeout=60)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
    return min(seconds)
