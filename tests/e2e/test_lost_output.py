"""A run whose terminal is closed, whose reader goes away, or whose output fills a disk."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import TinyRun
from tests.prepared import DEADLINE_S
from trinity.launch.job import LOCK
from trinity.utils.locks import is_held

pytestmark = pytest.mark.slow

PLUGIN = """
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("talks")
class Talks(RewardFn):
    def __call__(self, **kwargs):
        print("judged", flush=True)
        return {"accuracy": 0.5}
"""


def make(folder: Path, **keys: object) -> tuple[TinyRun, list[str]]:
    """Return a run whose reward function prints, and its command."""
    run = TinyRun(folder).change(buffer__explorer_input__default_reward_fn_type="talks", **keys)
    (folder / "plugins").mkdir()
    (folder / "plugins" / "talks.py").write_text(PLUGIN)
    (folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    return run, [sys.executable, "-m", "trinity", "run", "--config", "run.yaml", "--plugin-dir", "plugins"]


def environment(failpoints: str = "") -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TRINITY_FAILPOINTS": failpoints}


def test_a_full_disk_and_a_closed_pipe_under_the_output_do_not_end_a_run(tmp_path: Path) -> None:
    run, command = make(tmp_path)
    reading, writing = os.pipe()
    with open("/dev/full", "w") as full, open(reading) as lines:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=full, stderr=writing)
        os.close(writing)
        assert lines.readline()  # `trinity run |& head -1`
    assert process.wait(timeout=DEADLINE_S) == 0
    record = json.loads((run.job / "run.json").read_text())
    assert (record["status"], record["exit_code"], record["training_step"]) == ("done", 0, 2)
    log = (run.job / "log" / "run.log").read_text()
    assert "standard output cannot be written (No space left on device)" in log
    assert "standard error cannot be written (Broken pipe)" in log
    assert {line["rollout/failed_run_count"] for line in run.lines("explorer") if "rollout/reward/mean" in line} == {0}


def test_closing_the_terminal_stops_the_run_in_order(tmp_path: Path) -> None:
    run, command = make(tmp_path, buffer__total_steps=500, trainer__save_interval=500)
    ours, theirs = pty.openpty()
    # The shell has no terminal yet: the first that it opens is its own, as that of a window is.
    shell = ["sh", "-c", 'exec <"$0" >"$0" 2>&1; "$@"', os.ttyname(theirs), *command]
    leader = subprocess.Popen(shell, cwd=tmp_path, env=environment(), start_new_session=True)
    os.set_blocking(ours, False)
    deadline = time.monotonic() + DEADLINE_S
    while not (run.job / "metrics.jsonl").exists() or len(run.lines("trainer")) < 2:
        try:
            os.read(ours, 65536)
        except BlockingIOError:
            time.sleep(0.02)
        assert time.monotonic() < deadline and leader.poll() is None
    os.close(ours)
    os.close(theirs)
    leader.wait(timeout=DEADLINE_S)
    while is_held(run.job / LOCK):
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)
    record = json.loads((run.job / "run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("stopped", 143)
    assert (run.job / f"global_step_{record['training_step']}" / "MANIFEST.json").is_file()
    log = (run.job / "log" / "run.log").read_text()
    assert log.count("SIGHUP: ending the current step") == 1 and "Traceback" not in log
