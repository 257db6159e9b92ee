"""Workers that are killed at a deadline, replaced, and leave nothing behind."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from trinity.common.rewards.code_sandbox import Ran, run_code
from trinity.common.rewards.sandbox import CallFailed, CallTimedOut, Sandbox, Scored

BOMB = {"truth": "\\frac{1}{3}", "answer": "9^{9^{9^{9}}}", "is_marked": True}
LATEST_KILL_S = 1.0  # from the deadline, as the sandbox itself measures it
HALF = {"truth": "\\frac{1}{2}", "answer": "\\frac{2}{4}", "is_marked": True}


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    box = Sandbox(num_workers=1)
    yield box
    box.close()


def test_one_worker_serves_many_calls(sandbox: Sandbox) -> None:
    assert sandbox.worker_pids() == []
    outcomes = [sandbox.call("equal", HALF, deadline_s=20) for _ in range(5)]
    assert outcomes == [Scored(True)] * 5
    assert sandbox.counts() == {"calls": 5, "Scored": 5, "CallTimedOut": 0, "CallFailed": 0, "starts": 1}


@pytest.mark.difference("Arithmetic in rewards")
def test_a_call_past_its_deadline_is_killed_and_the_next_one_works(sandbox: Sandbox) -> None:
    assert sandbox.call("equal", HALF, deadline_s=20) == Scored(True)
    (hung,) = sandbox.worker_pids()
    outcome = sandbox.call("equal", BOMB, deadline_s=0.5)
    assert isinstance(outcome, CallTimedOut) and outcome.after_s == 0.5 and outcome.late_s <= LATEST_KILL_S
    assert not psutil.pid_exists(hung)
    assert sandbox.call("equal", HALF, deadline_s=20) == Scored(True)
    assert sandbox.counts()["starts"] == 2


def test_a_worker_killed_from_outside_is_replaced(sandbox: Sandbox) -> None:
    assert sandbox.call("equal", HALF, deadline_s=20) == Scored(True)
    (pid,) = sandbox.worker_pids()
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=0)
    for _ in range(2):  # the signal may arrive during the first call, which then says so
        outcome = sandbox.call("equal", HALF, deadline_s=20)
        if outcome == Scored(True):
            break
        assert isinstance(outcome, CallFailed) and "status -9" in outcome.reason
    assert outcome == Scored(True)


def test_what_the_library_raises_is_a_failure_with_its_reason(sandbox: Sandbox) -> None:
    outcome = sandbox.call("match", {"pattern": "(", "text": "x"}, deadline_s=20)
    assert isinstance(outcome, CallFailed) and "missing )" in outcome.reason
    assert sandbox.call("open", {}, deadline_s=20) == CallFailed("KeyError: 'open'")


@pytest.fixture
def many_files() -> Iterator[None]:
    """More open files than `select` can count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2048, hard)), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_may_have_large_numbers(many_files: None, sandbox: Sandbox) -> None:
    assert sandbox.call("equal", HALF, deadline_s=20) == Scored(True)
    assert sandbox.call("match", {"pattern": "a*é$", "text": "a" * 1_000_000 + "é"}, deadline_s=20) == Scored(True)
    assert run_code("print(input())", stdin="1\n", timeout_s=60) == Ran("1\n", "", 0, is_complete=True)
    assert run_code("while True: pass", timeout_s=1.0) == CallTimedOut(1.0)


@pytest.mark.parametrize("longest_s", [1e7, 1e300, math.inf])
def test_a_deadline_may_be_as_good_as_none(longest_s: float, sandbox: Sandbox) -> None:
    assert sandbox.call("equal", HALF, deadline_s=longest_s) == Scored(True)
    assert run_code("print(1)", timeout_s=longest_s) == Ran("1\n", "", 0, is_complete=True)


def test_a_request_larger_than_a_pipe_arrives(sandbox: Sandbox) -> None:
    text = "a" * 1_000_000 + "é"
    assert sandbox.call("match", {"pattern": "a*é$", "text": text}, deadline_s=20) == Scored(True)


def test_threads_share_the_workers() -> None:
    box = Sandbox(num_workers=2)
    texts = ["ab" if index % 3 else "cd" for index in range(60)]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda text: box.call("match", {"pattern": "ab", "text": text}, deadline_s=20), texts))
    assert outcomes == [Scored(text == "ab") for text in texts]
    assert len(box.worker_pids()) <= 2
    box.close()
    assert box.worker_pids() == []
    assert box.call("equal", HALF, deadline_s=1) == CallFailed("the sandbox is closed")


def test_the_worker_has_no_secrets_and_limits_itself(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-secret")
    assert sandbox.call("equal", HALF, deadline_s=20) == Scored(True)
    process = psutil.Process(sandbox.worker_pids()[0])
    assert "WANDB_API_KEY" not in process.environ()
    assert process.rlimit(psutil.RLIMIT_AS)[0] == 1 << 30
    assert process.rlimit(psutil.RLIMIT_FSIZE)[0] == 0
    assert process.rlimit(psutil.RLIMIT_CPU)[0] < 60


def test_no_worker_outlives_its_parent() -> None:
    code = (
        "from trinity.common.rewards.sandbox import shared_sandbox;"
        "box = shared_sandbox();"
        "box.call('match', {'pattern': 'a', 'text': 'a'}, deadline_s=20); print(box.worker_pids()[0], flush=True);"
    )
    ends = {"normal": "", "exception": "raise SystemExit(3)", "killed": "import os; os.kill(os.getpid(), 9)"}
    for how, end in ends.items():
        done = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True, timeout=60)
        pid = int(done.stdout)
        deadline = time.monotonic() + 5
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"worker {pid} is still there after the end: {how}"
            time.sleep(0.05)
