"""SIGKILL of an explorer and of the trainer of a run in parts: nothing is lost, nothing is trained twice."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.parts import Parts
from tests.prepared import DEADLINE_S

pytestmark = pytest.mark.slow

CANARY = "canary-of-parts-0815"


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def ended(process: subprocess.Popen[str]) -> int:
    return process.wait(timeout=DEADLINE_S)


@pytest.mark.difference("Explorer and trainer apart")
def test_killed_parts_are_missed_and_continue_where_they_were(tmp_path: Path):
    parts = Parts(tmp_path / "run")
    parts.trees["explorer"]["buffer"]["total_steps"] = 9
    secret = ("--set", f"monitor.monitor_args.api_key={CANARY}")
    processes = [trainer := parts.start("trainer", *secret, failpoints="train.after_step=kill@5")]
    # Its third step is in the store and nowhere else yet.
    processes.append(explorer := parts.start("explorer", *secret, failpoints="store.append.after_commit=kill@3"))
    try:
        assert ended(explorer) == -signal.SIGKILL
        wait_until(lambda: "explorer explorer has died" in parts.output("trainer"))
        command = next(line for line in parts.output("trainer").splitlines() if "has died" in line)
        assert "trinity run --config" in command and "explorer.yaml --plugin-dir" in command
        assert "${oc.env:TRINITY_MONITOR_MONITOR_ARGS_API_KEY}" in command, "each tells the other's command"
        assert trainer.poll() is None

        processes.append(again := parts.start("explorer"))
        assert ended(trainer) == -signal.SIGKILL
        assert parts.query("select max(step) from train_step") == [(4,)]
        wait_until(lambda: "no trainer is running" in parts.output("explorer"))
        assert f"start it again: cd {parts.folder} && " in parts.output("explorer")
        assert f" trinity run --config {parts.folder / 'trainer.yaml'}" in parts.output("explorer")
        processes.append(last := parts.start("trainer"))
        assert (ended(again), ended(last)) == (0, 0), parts.output("explorer") + parts.output("trainer")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()

    kept = [path for path in parts.folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert kept == [], "no lock, log or output has the secret of its own or of the other part"
    assert "explorer: continuing from explore step 3" in parts.output("explorer")
    made = parts.query("select explore_step, count(*), count(distinct uid) from experience group by 1 order by 1")
    assert made == [(step, 4, 4) for step in range(1, 10)]
    assert parts.query("select state, count(*) from experience group by 1") == [("trained", 36)]
    assert parts.query("select count(*), count(distinct uid) from step_exp") == [(36, 36)]
    assert [line["step"] for line in parts.lines("trainer")] == list(range(1, 10))
    # The kill came between the store's commit and the line of metrics: that is reported.
    assert [line["step"] for line in parts.lines("explorer")] == [1, 2, *range(4, 10)]
    assert "holds 2 lines of explorer and the checkpoint counts 3" in parts.output("explorer")
    # The fixed schedule with interval 2: explore step k is served by a version of at least the last even number below.
    assert max(line["sample/staleness/max"] for line in parts.lines("trainer")) <= 1
    assert all(line["rollout/model_version"] >= (line["step"] - 1) // 2 * 2 for line in parts.lines("explorer"))
