"""A page followed as a reader would: its files are written, its commands run, in the order of the page."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.docs.not_run import reason
from tests.docs.pages import Page, Snippet, command_lines
from tests.prepared_command import program

# "Put this into `run.yaml`:" directly above a block; commands are blocks of bash.
STEP = re.compile(r"^(?:[^\n]*`([\w./-]+\.\w+)`[^`\n]*:\n\n)?```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
TIMEOUT_S = 280
BEGINS = "\x1e"  # before what each line prints


def follow(
    page: Page, folder: Path, *, only: str = "", without: tuple[str, ...] = (), **environment: str
) -> dict[str, str]:
    """Follow a page in a folder; return what each line printed.

    Args:
        page: its files are written, and its commands run.
        folder: for all of it.
        only: the one line that is run.
        without: how lines begin that other tests run.
        environment: variables besides those of the test.

    Raises:
        AssertionError: a command failed, with all that it printed.
    """
    said: dict[str, str] = {}
    with programs() as path:
        for name, language, code in STEP.findall(page.text):
            if language == "bash":
                lines = commands(page, code)
                wanted = [line for line in lines if only in ("", line) and not line.startswith(without)]
                said |= run_lines(wanted, folder, {"PATH": path} | environment)
            elif name:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(code, encoding="utf-8")
    return said


@contextlib.contextmanager
def programs() -> Iterator[str]:
    """Yield a search path with `trinity` and `python`, as they are in an environment that was activated."""
    with program() as trinity:
        python = trinity.with_name("python")
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        yield f"{trinity.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def commands(page: Page, code: str) -> list[str]:
    """Return the lines of a block that are run."""
    return [line for line in command_lines(code) if not reason(Snippet(page.name, "bash", code, line))]


def run_lines(
    lines: list[str], folder: Path, variables: dict[str, str], *, timeout_s: float = TIMEOUT_S
) -> dict[str, str]:
    """Run lines one after the other in one shell, each in `timeout_s`; return what each printed.

    Raises:
        AssertionError: one failed, with all that it printed.
    """
    # What a line has put into the background would keep the pipe open.
    before = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    script = before + "".join(f"printf {shlex.quote(BEGINS)}\n{line}\n" for line in lines)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=os.environ | {"COLUMNS": "200"} | variables, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=timeout_s * max(len(lines), 1),
    )  # fmt: skip
    printed = done.stdout.split(BEGINS)[1:]
    assert done.returncode == 0, f"{lines[len(printed) - 1]}\n{printed[-1][-4000:]}"
    return dict(zip(lines, printed, strict=True))
