"""`trinity env-check` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import ExitCode

PLUGIN = """
import time
from trinity.common.workflows import WORKFLOWS, Workflow


@WORKFLOWS.register_module("blocking")
class Blocking(Workflow):
    is_async = True

    async def run_async(self):
        time.sleep(600)
        return []


@WORKFLOWS.register_module("refuses_silence")
class RefusesSilence(Workflow):
    def run(self):
        (answer,) = self.model.chat([{"role": "user", "content": self.task.task_desc}], n=1)
        answer.reward = 1.0 / len(answer.response_text)
        return [answer]
"""


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    """A configuration with plugins."""
    return TinyRun(tmp_path, plugin=PLUGIN)


def test_the_table_and_the_status_say_the_same(run: TinyRun) -> None:
    done = run.finish("-n", "2", words=("env-check", "--config", "run.yaml"))
    assert done.status == 0, done.output
    assert "ok       determinism  4 rollouts give the same prompts and rewards twice" in done.output
    assert done.output.rstrip().endswith("0 errors, 0 warnings, 20 ok")
    run.change(buffer__explorer_input__default_workflow_type="refuses_silence")
    words = ("env-check", "run.yaml", "--json", "--tasks", "1", "--repetitions", "2")
    done = run.finish(words=words)
    assert done.status == ExitCode.RUNTIME
    first = json.loads(done.output)[0]
    place = f"{run.folder}/plugins/own.py:{PLUGIN[: PLUGIN.index('1.0 / len')].count(chr(10)) + 1} in run"
    assert first["level"] == "error" and first["check"] == "rollouts"
    assert first["message"] == f"silent: 1 of 1 failed: ZeroDivisionError: float division by zero ({place})"
    assert not (run.folder / "out").exists()


@pytest.mark.slow
def test_a_workflow_that_blocks_the_event_loop_ends_the_check(run: TinyRun) -> None:
    run.change(buffer__explorer_input__default_workflow_type="blocking")
    done = run.finish("--timeout", "0.5", words=("env-check", "--config", "run.yaml"))
    assert done.status == ExitCode.RUNTIME
    assert (
        "[E5303] the event loop has stood still" in done.output and "plugins/own.py:11 in run_async" in done.output
    ), done.output
