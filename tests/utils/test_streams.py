"""Output whose reader is gone: what is printed is lost, and nothing else."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import logging, sys
from trinity.utils.log import log_to_console, logged_to_file, get_logger
from trinity.utils.streams import steady_output
steady_output()
log_to_console()
with logged_to_file("", __import__("pathlib").Path(sys.argv[1])):
    for _ in range(3000):
        print("to standard output", flush=True)
        get_logger("x").warning("to standard error")
    __import__("time").sleep(0.2)
"""


def run(log: Path, *, stdout: int, stderr: int, unbuffered: bool = False) -> int:
    """Return the exit status of the program with these descriptors, which are closed here."""
    command = [sys.executable, *(["-u"] if unbuffered else []), "-c", PROGRAM, str(log)]
    try:
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(command, stdout=stdout, stderr=stderr, env=env, cwd=ROOT, timeout=60).returncode
    finally:
        os.close(stdout)
        os.close(stderr)


def broken_pipe() -> int:
    """Return the writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_full_disk_and_a_broken_pipe_cost_the_text_and_are_told_once(tmp_path: Path, unbuffered: bool) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    assert run(tmp_path / "log", stdout=full, stderr=broken_pipe(), unbuffered=unbuffered) == 0
    log = (tmp_path / "log").read_text()
    assert log.count("to standard error") == 3000
    assert log.count("standard output cannot be written (No space left on device)") == 1
    assert log.count("standard error cannot be written (Broken pipe)") == 1


def test_what_has_a_reader_arrives_whole(tmp_path: Path) -> None:
    out, err = (os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("out", "err"))
    assert run(tmp_path / "log", stdout=out, stderr=err) == 0
    assert (tmp_path / "out").read_text() == "to standard output\n" * 3000
    assert (tmp_path / "err").read_text().count("to standard error\n") == 3000
    assert "cannot be written" not in (tmp_path / "log").read_text()


def test_what_is_printed_without_a_buffer_arrives_at_once() -> None:
    """As `python -u` and PYTHONUNBUFFERED ask for it: those who follow a run line by line wait for none."""
    program = "from trinity.utils.streams import steady_output; steady_output(); print('here'); input()"
    command = [sys.executable, "-u", "-c", program]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            assert select.select([process.stdout], [], [], 60)[0] and process.stdout.readline() == b"here\n"
        finally:
            process.kill()
