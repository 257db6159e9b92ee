"""Runs that the studio starts and resumes, as processes of their own.

They are what `trinity run` and `trinity resume` start, and continue when the studio ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity.launch.jobs import resume_words
from trinity.manager.studio.settings import VARIABLE

LOG_NAME = "studio.log"
_started: list[StartedRun] = []


@dataclass
class StartedRun:
    """A run that was started here.

    Attributes:
        process: of `trinity run`.
        output: the file with what it prints.
        is_told: whether its bad end was shown.
    """

    process: subprocess.Popen[bytes]
    output: Path
    is_told: bool = False


def start_run(file: Path, *, plugin_dirs: Sequence[Path] = ()) -> StartedRun:
    """Start a run of a YAML file, in the folder of this process.

    What it prints goes to a file beside the YAML file, with the ending `.out`.
    """
    words = ["--config", str(file)]
    for folder in plugin_dirs:
        words += ["--plugin-dir", str(folder)]
    return _start(words, Path.cwd(), file.with_suffix(".out"))


def resume_run(job: Path, *, part: str | None = None) -> StartedRun:
    """Continue a run as `trinity resume`.

    What it prints goes to `log/studio.log` of the job.

    Raises:
        ConfigError: its command is not known, or it has several parts and none is chosen (E8008).
        AlreadyRunningError: it runs (E8001).
    """
    folder, words = resume_words(job, part=part)
    output = job / "log" / LOG_NAME
    output.parent.mkdir(exist_ok=True)
    return _start(words, folder, output)


def ended_badly() -> list[StartedRun]:
    """Return the runs that were started here and failed, each once."""
    found = [each for each in _started if each.process.poll() and not each.is_told]
    for each in found:
        each.is_told = True
    return found


def last_lines(file: Path, number: int) -> str:
    """Return the last lines of a text file; empty: there is no such file."""
    if not file.is_file():
        return ""
    with open(file, "rb") as opened:
        opened.seek(max(0, file.stat().st_size - 400 * number))
        return "\n".join(opened.read().decode(errors="replace").splitlines()[-number:])


def _environment() -> dict[str, str]:
    """Return the variables of this process but those of its page.

    The path of the page is a secret of its reader.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith((VARIABLE, "STREAMLIT_"))}


def _start(words: Sequence[str], folder: Path, output: Path) -> StartedRun:
    with open(output, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "trinity", "run", *words],
            cwd=folder, env=_environment(),
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    started = StartedRun(process, output)
    _started.append(started)
    return started
