"""An example as a reader runs it: the first commands of its README in a shell, and the processor time they took."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests import prepared
from tests.examples import BY_SCRIPT, EXAMPLES, commands

PREPARATION = "python examples/prepare.py"
PROGRAMS = {"trinity": "-m trinity", "python": ""}


@dataclass(frozen=True)
class ExampleRun:
    """What commands took, and left.

    Attributes:
        cpu_s: seconds of the processor, of all processes together.
        wall_s: seconds from the first to the end.
        output: what they printed.
    """

    cpu_s: float
    wall_s: float
    output: str


def place_of_runs(folder: Path) -> Path:
    """Make a folder like the root of the repository, in which nothing is prepared yet, and return it.

    One that is there is used as it is.
    """
    programs = folder.absolute() / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    for name, words in PROGRAMS.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    if not (folder / "examples").is_symlink():
        (folder / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    return folder.absolute()


def prepare(folder: Path, place: Path, *, timeout_s: float) -> ExampleRun:
    """Prepare what an example's README prepares; it is left as it is where it is complete."""
    return _in_shell([line for line in commands(folder) if line.startswith(PREPARATION)], place, timeout_s=timeout_s)


def train(folder: Path, place: Path, *, timeout_s: float) -> ExampleRun:
    """Run what an example's README runs after the preparation."""
    lines = [line for line in commands(folder) if not line.startswith(PREPARATION)]
    return _in_shell(lines, place, timeout_s=timeout_s)


def job_of(folder: Path, place: Path) -> Path:
    """Return the job's folder of an example that ran in `place`."""
    if folder.name in BY_SCRIPT:
        return place / folder.name / "checkpoints" / folder.name / "grpo"
    return place / "checkpoints" / "examples" / folder.name


def metrics_of(job: Path) -> list[dict[str, float]]:
    """Return the lines of a job's metrics."""
    return [json.loads(line) for line in (job / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _in_shell(lines: list[str], place: Path, *, timeout_s: float) -> ExampleRun:
    """Run lines one after another, up to the first that fails.

    Raises:
        AssertionError: one failed.
        subprocess.TimeoutExpired: they live after `timeout_s` seconds.
    """
    variables = prepared.variables_of(os.environ)
    variables["PATH"] = f"{place / 'programs'}{os.pathsep}{variables['PATH']}"
    script = "\n".join(["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *lines, "wait"])
    before, begin = _used_s(), time.monotonic()
    with subprocess.Popen(
        ["bash", "-c", script], cwd=place, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            output, _ = shell.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    assert shell.returncode == 0, (lines, shell.returncode, output[-4000:])
    return ExampleRun(_used_s() - before, time.monotonic() - begin, output)


def _used_s() -> float:
    """Return the seconds of the processor that processes took which have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
