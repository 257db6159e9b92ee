"""A page followed as a reader would: its files are written, its commands run, in the order of the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import Page
from tests.prepared_command import program

# "Put this into `run.yaml`:" directly above a block; commands are blocks of bash.
STEP = re.compile(r"^(?:[^\n]*`([\w./-]+\.\w+)`[^`\n]*:\n\n)?```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
TIMEOUT_S = 280
# What a reader does with a network, an account, a cluster, a browser or a second terminal, or looks at the machine.
NOT_RUN = (
    ".venv/bin/", "cd trinity", "docker ", "export ", "git clone ", "kubectl ", "make ", "mlflow server", "nvidia-smi",
    "pip ", "python3 -m venv", "sbatch ", "tensorboard ", "trinity debug ", "trinity doctor", "wandb ",
)  # fmt: skip


def follow(page: Page, folder: Path, *, only: str = "", **environment: str) -> dict[str, str]:
    """Follow a page in a folder, or run one of its lines alone; return what each line printed.

    Raises:
        AssertionError: a command failed, with all that it printed.
    """
    said: dict[str, str] = {}
    with program() as trinity:
        python = trinity.with_name("python")
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        path = f"{trinity.parent}:{os.environ['PATH']}"
        variables = os.environ | {"PATH": path, "COLUMNS": "200"} | environment
        for name, language, code in STEP.findall(page.text):
            if language == "bash":
                for line in commands(code):
                    if only and line != only:
                        continue
                    said[line] = _run(line, folder, variables)
            elif name:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(code, encoding="utf-8")
    return said


def commands(code: str) -> list[str]:
    """Return the lines of a block that are run."""
    return [line for line in code.splitlines() if line and not line.startswith(NOT_RUN)]


def _run(line: str, folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    output = done.stderr + done.stdout
    assert done.returncode == 0, f"{line}\n{output[-4000:]}"
    return output
