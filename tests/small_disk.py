"""A file system that is soon full: a real one of a few MiB, which ends with the process that sees it."""

from __future__ import annotations

import functools
import resource
import subprocess
import sys
from pathlib import Path

MOUNT = 'mount -t tmpfs -o "size=$0" tmpfs "$1" && shift && exec "$@"'


@functools.cache
def _way() -> tuple[str, ...]:
    """Return the command that gives a process mounts of its own; none where this machine lets nobody mount."""
    for way in (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user")):
        try:
            probe = subprocess.run([*way, "sh", "-c", MOUNT, "1m", "/tmp", "true"], capture_output=True, timeout=30)
        except FileNotFoundError:
            return ()
        if probe.returncode == 0:
            return way
    return ()


def run_on_small_disk(script: str, folder: Path, *, mib: int) -> tuple[str, bool]:
    """Run a Python script with a new file system of `mib` MiB at `folder`, its first argument.

    Returns:
        What it printed, and whether the disk is full at that size. Where this machine lets nobody mount, it is each
        file that ends there: other words of the operating system on the same way through the code.
    """
    command, way = [sys.executable, "-c", script, str(folder)], _way()
    limit = mib * 2**20
    ended = subprocess.run(
        [*way, "sh", "-c", MOUNT, f"{mib}m", str(folder), *command] if way else command,
        preexec_fn=None if way else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout, bool(way)
