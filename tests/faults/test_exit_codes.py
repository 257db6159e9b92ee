"""A failure of each component: the exit code of its kind, no later stage, and a last line with cause and log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from tests.e2e.tiny_run import TinyRun
from trinity.cli.app import app
from trinity.common.errors import ExitCode
from trinity.launch.job import JobLock
from trinity.utils import failpoints

pytestmark = pytest.mark.slow

PLUGIN = """
import asyncio
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, SimpleWorkflow
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperatorV1


@WORKFLOWS.register_module("fails_everywhere")
class FailsEverywhere(SimpleWorkflow):
    def run(self):
        raise LookupError("the oracle is not at home")


@WORKFLOWS.register_module("takes_a_while")
class TakesAWhile(AsyncSimpleWorkflow):
    async def run_async(self):
        await asyncio.sleep(3)


@REWARD_FUNCTIONS.register_module("reward_fails_everywhere")
class RewardFailsEverywhere(RewardFn):
    def __call__(self, **kwargs):
        raise LookupError("nobody judges")


@EXPERIENCE_OPERATORS.register_module("operator_fails")
class OperatorFails(ExperienceOperatorV1):
    async def process(self, exps):
        raise LookupError("nobody operates")
"""
RAISED = "RuntimeError: failpoint"
FAILURES: dict[str, tuple[dict[str, Any], str, ExitCode, str]] = {
    "explorer": ({}, "explore.after_rollout=raise@2", ExitCode.RUNTIME, f"{RAISED} explore.after_rollout"),
    "trainer": ({}, "train.before_step=raise@2", ExitCode.RUNTIME, f"{RAISED} train.before_step"),
    "synchronizer": (
        {"synchronizer__sync_method": "checkpoint"},
        "sync.before_publish=raise", ExitCode.RUNTIME, f"{RAISED} sync.before_publish",
    ),
    "store, append": ({}, "store.append.before_commit=raise@2", ExitCode.RUNTIME, f"{RAISED} store.append"),
    "store, ledger": ({}, "store.commit_step.before_commit=raise", ExitCode.RUNTIME, f"{RAISED} store.commit_step"),
    "checkpoint": ({}, "ckpt.after_files=enospc", ExitCode.CHECKPOINT, "[E7022] no space left"),
    "workflow": (
        {"buffer__explorer_input__default_workflow_type": "fails_everywhere"}, "", ExitCode.RUNTIME, "the oracle is not"
    ),
    "reward function": (
        {"buffer__explorer_input__default_reward_fn_type": "reward_fails_everywhere"},
        "", ExitCode.RUNTIME, "nobody judges",
    ),
    "operator": (
        {"data_processor__experience_pipeline": {"operators": [{"name": "operator_fails"}]}},
        "", ExitCode.RUNTIME, "nobody operates",
    ),
    "runner": (
        {"explorer__runner_isolation": "process", "explorer__env_vars": {"PYTHONHOME": "/nowhere"}},
        "", ExitCode.RUNTIME, "did not start in 3 attempts (explorer.runner_prepare_max_retries",
    ),
    "no experiences": (
        {
            "buffer__explorer_input__default_workflow_type": "takes_a_while",
            "buffer__trainer_input__experience_buffer": {"name": "experience_buffer", "max_read_timeout": 0.3},
        },
        "", ExitCode.STARVED, "max_read_timeout",
    ),
    "gradients": (
        {
            "algorithm__optimizer": {"lr": 1.0e38, "optimizer_type": "sgd", "weight_decay": 0.5},
            "algorithm__entropy_loss_fn_args": {"entropy_coef": 1.0},
            "trainer__grad_clip": 1.0e30,
            "buffer__total_steps": 9,
        },
        "", ExitCode.NUMERIC, "E6001",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.configure("")


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, because a process loads a plugin once."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "fails_everywhere.py").write_text(PLUGIN)
    return folder


def two_stages(folder: Path, **keys: Any) -> TinyRun:
    """Return a run of two stages, of which only the first one has `keys`."""
    folder.mkdir(exist_ok=True)
    run = TinyRun(folder)
    run.change(checkpoint_root_dir=str(folder / "out"), model__model_path=str(folder / "model"))
    run.change(buffer__explorer_input__taskset__path=str(folder / "train.jsonl"))
    later = {"stage_name": "later", "mode": "both"}
    first = TinyRun.__new__(TinyRun)
    first.tree = {"stage_name": "first", "mode": "both"}
    first.change(**keys)
    run.tree["stages"] = [first.tree, later]
    return run


def invoke(run: TinyRun, plugins: Path) -> Result:
    """Run in this process, as the command does."""
    file = run.folder / "run.yaml"
    file.write_text(yaml.safe_dump(run.tree))
    return CliRunner().invoke(app, ["run", "--config", str(file), "--plugin-dir", str(plugins)])


@pytest.mark.parametrize("component", FAILURES)
def test_a_failure_has_its_exit_code_and_a_last_line_and_ends_the_run(
    tmp_path: Path, plugins: Path, component: str
) -> None:
    keys, points, code, cause = FAILURES[component]
    run = two_stages(tmp_path, **keys)
    failpoints.configure(points)
    ended = invoke(run, plugins)
    assert ended.exit_code == code, ended.output
    resume, last = ended.output.splitlines()[-2:]
    assert resume.startswith("resume with: trinity run --config ")
    assert last.startswith(f"failed with exit code {int(code)}: ") and cause in last, ended.output[-3000:]
    first = tmp_path / "out" / "tiny" / "run" / "first"
    assert last.endswith(f"; log: {first / 'log'}") and (first / "log" / "run.log").is_file()
    assert not first.with_name("later").exists()


def test_a_run_that_is_refused_starts_no_stage(tmp_path: Path, plugins: Path) -> None:
    run = two_stages(tmp_path)
    held = JobLock(tmp_path / "out" / "tiny" / "run" / "first")
    try:
        ended = invoke(run, plugins)
    finally:
        held.release()
    assert ended.exit_code == ExitCode.ALREADY_RUNNING, ended.output
    assert ended.output.splitlines()[-1].startswith("failed with exit code 8: [E8001] ")
    for key, value, code, cause in (
        ("explorer__runer_per_model", 3, ExitCode.USAGE, "did you mean"),
        ("buffer__explorer_input__taskset__format", {"prompt_key": "nothing"}, ExitCode.DATA, "nothing"),
    ):
        ended = invoke(two_stages(tmp_path / key, **{key: value}), plugins)
        assert ended.exit_code == code and cause in ended.output, ended.output
        assert "resume with" not in ended.output and not (tmp_path / key / "out").exists()
    missing = two_stages(tmp_path / "missing").change(model__model_path=str(tmp_path / "nowhere"))
    ended = invoke(missing, plugins)
    assert ended.exit_code == ExitCode.ENVIRONMENT and not (tmp_path / "missing" / "out").exists(), ended.output
