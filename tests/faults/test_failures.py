"""Failures of user code, components and files end the run: in time, with a status, a cause, and nothing poisoned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import ExitCode

pytestmark = pytest.mark.slow

PLUGIN = """
import asyncio, threading, time
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, SimpleWorkflow

FOREVER = 3600


def is_bad(task):
    return task.raw_task["question"].startswith("3+")


@WORKFLOWS.register_module("always_raises")
class AlwaysRaises(SimpleWorkflow):
    def run(self):
        raise LookupError("the oracle is not at home")


@WORKFLOWS.register_module("hangs_in_a_thread")
class HangsInAThread(SimpleWorkflow):
    def run(self):
        if is_bad(self.task):
            time.sleep(FOREVER)
        return super().run()


@WORKFLOWS.register_module("hangs_in_an_executor")
class HangsInAnExecutor(AsyncSimpleWorkflow):
    async def run_async(self):
        if is_bad(self.task):
            await asyncio.to_thread(time.sleep, FOREVER)
        return await super().run_async()


@WORKFLOWS.register_module("leaves_a_thread")
class LeavesAThread(SimpleWorkflow):
    def run(self):
        threading.Thread(target=time.sleep, args=(FOREVER,)).start()
        return super().run()


@WORKFLOWS.register_module("swallows_its_end")
class SwallowsItsEnd(AsyncSimpleWorkflow):
    async def run_async(self):
        while is_bad(self.task):
            try:
                await asyncio.sleep(FOREVER)
            except BaseException:
                pass
        return await super().run_async()


@WORKFLOWS.register_module("blocks_the_loop")
class BlocksTheLoop(AsyncSimpleWorkflow):
    async def run_async(self):
        if is_bad(self.task):
            time.sleep(FOREVER)
        return await super().run_async()


@REWARD_FUNCTIONS.register_module("hanging_reward")
class HangingReward(RewardFn):
    def __call__(self, **kwargs):
        time.sleep(FOREVER)
"""


CLOSING = (
    PLUGIN
    + """

from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperatorV1


@EXPERIENCE_OPERATORS.register_module("will_not_close")
class WillNotClose(ExperienceOperatorV1):
    async def process(self, exps):
        return exps, {}

    async def close(self):
        raise OSError("the door is stuck")
"""
)


def made(tmp_path: Path, workflow: str = "simple_workflow") -> TinyRun:
    """Return a run with the plugin and a short deadline for each attempt."""
    run = TinyRun(tmp_path, plugin=PLUGIN)
    return run.change(buffer__explorer_input__default_workflow_type=workflow, explorer__max_timeout=2)


@pytest.mark.parametrize("steps", [20, 1])
def test_a_workflow_that_always_raises_ends_the_run_with_its_place(tmp_path: Path, steps: int):
    run = made(tmp_path, "always_raises").change(buffer__total_steps=steps)
    ended = run.finish()
    assert ended.status == ExitCode.RUNTIME, ended.output
    assert "E5130" in ended.output and "LookupError: the oracle is not at home" in ended.output
    assert "own.py" in ended.output and "Traceback" not in ended.output


@pytest.mark.parametrize(
    "workflow", ["hangs_in_a_thread", "hangs_in_an_executor", "swallows_its_end", "leaves_a_thread"]
)
def test_code_that_never_ends_is_counted_and_does_not_keep_the_process(tmp_path: Path, workflow: str):
    run = made(tmp_path, workflow)
    ended = run.finish()
    assert ended.status == ExitCode.DONE, ended.output
    late = sum(line["rollout/timeout_run_count"] for line in run.lines("explorer"))
    assert late == (0 if workflow == "leaves_a_thread" else 2)


def test_an_async_workflow_that_blocks_the_event_loop_ends_the_run_with_its_place(tmp_path: Path):
    ended = made(tmp_path, "blocks_the_loop").finish()
    assert ended.status == ExitCode.RUNTIME, ended.output
    assert "own.py" in ended.output and "run_async" in ended.output and "explorer.max_timeout" in ended.output


def test_a_reward_that_hangs_everywhere_ends_the_run(tmp_path: Path):
    run = made(tmp_path).change(buffer__explorer_input__default_reward_fn_type="hanging_reward")
    ended = run.change(explorer__max_timeout=1, buffer__total_steps=9).finish()
    assert ended.status == ExitCode.RUNTIME and "explorer.max_timeout" in ended.output, ended.output


@pytest.mark.parametrize("point", ["train.before_step=raise@2", "explore.after_rollout=raise@2"])
def test_an_unforeseen_error_of_one_side_ends_the_other(tmp_path: Path, point: str):
    run = made(tmp_path).change(buffer__total_steps=50, synchronizer__sync_timeout=600)
    ended = run.finish(failpoints=point)
    assert ended.status == ExitCode.RUNTIME and f"RuntimeError: failpoint {point.partition('=')[0]}" in ended.output


def test_a_store_that_is_removed_while_in_use_is_named(tmp_path: Path):
    plugin = PLUGIN + (
        "\n\nimport pathlib\n\n\n@WORKFLOWS.register_module('deletes')\nclass Deletes(SimpleWorkflow):\n"
        "    def run(self):\n        for file in pathlib.Path('out').rglob('experience.db*'):\n"
        "            file.unlink()\n        return super().run()\n"
    )
    run = made(tmp_path, "deletes").change(buffer__total_steps=50)
    run.plugin = plugin
    ended = run.finish()
    assert ended.status == ExitCode.RUNTIME and "E5209" in ended.output and "was removed" in ended.output
    assert "Traceback" not in ended.output


def test_an_operator_that_will_not_close_hides_no_failure_and_keeps_nothing_open(tmp_path: Path):
    run = made(tmp_path).change(data_processor__experience_pipeline__operators=[{"name": "will_not_close"}])
    run.plugin = CLOSING
    ended = run.finish(failpoints="train.before_step=raise@2")
    assert ended.status == ExitCode.RUNTIME and "RuntimeError: failpoint train.before_step" in ended.output
    assert "the door is stuck" in ended.output and ended.output.count("failed with exit code ") == 1


def test_in_deterministic_mode_a_rollout_that_hangs_costs_its_group_alone(tmp_path: Path):
    run = made(tmp_path, "hangs_in_a_thread").change(deterministic=True)
    ended = run.finish()
    assert ended.status == ExitCode.DONE, ended.output
    second = run.lines("explorer")[1]
    assert second["rollout/timeout_run_count"] == 2 and second["rollout/failed_run_count"] == 0
    assert second["rollout/finished_task_count"] == 1 and second["experience_pipeline/experience_count"] == 2


def test_gradients_that_are_not_finite_end_the_run_and_reach_no_checkpoint(tmp_path: Path):
    run = made(tmp_path).change(
        algorithm__optimizer={"lr": 1.0e38, "optimizer_type": "sgd", "weight_decay": 0.5},
        algorithm__entropy_loss_fn_args={"entropy_coef": 1.0},
        trainer__grad_clip=1.0e30,
        buffer__total_steps=9,
    )
    ended = run.finish()
    assert ended.status == ExitCode.NUMERIC and "E6001" in ended.output, ended.output
    assert [line["actor/skipped_steps"] for line in run.lines("trainer")] == [0.0, 1.0, 2.0]
    for file in run.job.glob("global_step_*/actor/model_*.pt"):
        assert all(bool(tensor.isfinite().all()) for tensor in torch.load(file, weights_only=True).values())
