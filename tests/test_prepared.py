"""A prepared process is as an ordinary one, but for what it has imported and its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests import prepared
from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import ExitCode

pytestmark = pytest.mark.skipif(not prepared.CAN_FORK, reason="there all runs are ordinary processes")

LOOK = """
import gc, json, logging, os, random, resource, signal, sys, time

import numpy
import torch

from trinity.utils.arithmetic import mkl_cbwr

main = sys.modules["__main__"]
same = {
    "command": [sys.argv, sys.orig_argv, sys.executable, os.getcwd(), sys.path, str(sys.flags), os.umask(0o022)],
    "main": [main.__name__, main.__spec__.name, main.__file__],
    "environment": dict(os.environ),
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
    "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "limits": [resource.getrlimit(number) for number in range(16)],
    "files": sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in (0, 1, 2)),
    "open": len(os.listdir("/proc/self/fd")),
    "streams": [[s.encoding, s.errors, s.line_buffering, s.isatty()] for s in (sys.stdout, sys.stderr)],
    "threads": len(os.listdir("/proc/self/task")),
    "handlers": [str(type(each)) for name in ("", "trinity") for each in logging.getLogger(name).handlers],
    "collector": [gc.isenabled(), gc.get_threshold()],
    "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), mkl_cbwr()],
    "torch default": str(torch.get_default_dtype()),
}
own = {"hash": hash("seed"), "random": random.random(), "numpy": numpy.random.random(), "torch": torch.rand(()).item()}
print(json.dumps({"same": same, "own": own}), flush=True)
if os.environ.get("TRINITY_TEST_LATER"):
    time.sleep(600)
raise RuntimeError("it has told")
"""


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    """A run whose plugin tells what process it is in, and ends it."""
    return TinyRun(tmp_path, plugin=LOOK)


def told(output: str) -> dict[str, Any]:
    return json.loads(next(line for line in output.splitlines() if line.startswith('{"same"')))


def test_a_prepared_process_sees_what_an_ordinary_one_sees_and_draws_numbers_of_its_own(run: TinyRun) -> None:
    ends = [run.finish(is_real=is_real) for is_real in (True, False, False)]
    assert [end.status for end in ends] == [ExitCode.USAGE] * 3, ends[1].output
    real, first, second = (told(end.output) for end in ends)
    for each in (real, first, second):
        for name in prepared.SET_BY_LIBRARIES:  # earlier where they are imported earlier
            each["same"]["environment"].pop(name, None)
    assert first["same"] == second["same"] == real["same"]
    assert len({tuple(end.output.splitlines()[-2:]) for end in ends}) == 1, "the end of an interpreter says nothing"
    for generator in ("random", "numpy", "torch"):
        assert len({each["own"][generator] for each in (real, first, second)}) == 3, generator
    assert real["own"]["hash"] != first["own"]["hash"] == second["own"]["hash"]


@pytest.mark.parametrize("way", [signal.SIG_IGN, signal.default_int_handler])
def test_a_prepared_process_ignores_what_the_one_that_asks_for_it_does(run: TinyRun, way: Any) -> None:
    before = signal.signal(signal.SIGINT, way)
    try:
        ends = [run.finish(is_real=is_real) for is_real in (True, False)]
    finally:
        signal.signal(signal.SIGINT, before)
    real, forked = (told(end.output)["same"]["signals"] for end in ends)
    assert forked == real


def test_a_prepared_process_is_handled_as_one_of_subprocess(run: TinyRun, tmp_path: Path) -> None:
    process = run.start(environment={"TRINITY_TEST_LATER": "1"})
    assert isinstance(process, prepared.PreparedProcess) and process.stdout is not None
    line = process.stdout.readline()
    while not line.startswith('{"same"'):
        line = process.stdout.readline()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.05)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.05)
    os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)  # nobody has asked for its status, so its id is still its own
    assert process.wait(timeout=60) == process.returncode == process.poll() == -signal.SIGTERM
    process.kill()
    assert process.communicate(timeout=60)[1] is None

    with open(tmp_path / "out.txt", "w") as output, run.start(output=output) as other:
        assert other.stdout is None and other.wait(timeout=60) == ExitCode.USAGE
    assert told((tmp_path / "out.txt").read_text())


def test_what_is_read_before_the_command_begins_makes_an_ordinary_process(run: TinyRun) -> None:
    process = run.start(environment={"PYTHONHASHSEED": "5"})
    assert not isinstance(process, prepared.PreparedProcess)
    output, _ = process.communicate(timeout=120)
    assert told(output)["same"]["environment"]["PYTHONHASHSEED"] == "5"


def test_a_command_that_cannot_be_read_and_an_error_end_as_ever(tmp_path: Path) -> None:
    process = prepared.start(["run", "--no-such-option"], cwd=tmp_path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "--no-such-option" in output
