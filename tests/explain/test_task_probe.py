"""The task probe: a reward function that fails on the first task is told before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.tiny import tiny_model
from trinity.catalogue import BUILT_IN
from trinity.common.config import examine
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.explain.task_probe import probe_tasks

RUN = """\
project: p
name: n
model: {model_path: model, max_model_len: 32}
algorithm: {algorithm_type: grpo, repeat_times: 2}
buffer:
  batch_size: 2
  explorer_input:
    default_workflow_type: %s
    default_reward_fn_type: %s
    taskset: {name: train, path: train.jsonl, reward_fn_args: %s}
    eval_tasksets: [{name: test, path: train.jsonl}]
"""


class ProbedReward(RewardFn):
    """Does what it is told."""

    def __init__(self, scores: object = None, raises: str = "") -> None:
        self.scores, self.raises = scores, raises

    def __call__(self, response: str, prompt: str | None = None, truth: object = None, **kwargs: object) -> dict:
        if self.raises and response == truth:
            raise KeyError(self.raises)
        return {"score": 1.0} if self.scores is None else self.scores


@pytest.fixture
def reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that gives what the probe says of a workflow, a reward function and its arguments."""
    monkeypatch.chdir(tmp_path)
    REWARD_FUNCTIONS.register_module("probed_reward")(ProbedReward)
    tiny_model(tmp_path / "model")
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "1+1=", "response": "2"}) + "\n")
    catalogue = BUILT_IN.with_plugins({"reward_fn": frozenset({"probed_reward"})})

    def probe(reward: str, args: object = None, workflow: str = "simple_workflow") -> dict[str, str]:
        (tmp_path / "run.yaml").write_text(
            RUN % (workflow, reward, yaml.safe_dump(args or {}, default_flow_style=True))
        )
        plan, problems = examine(tmp_path / "run.yaml", catalogue=catalogue, cwd=tmp_path)
        assert not [p.render() for p in problems if p.is_error]
        return {found.key.rpartition(".")[2]: found.message for found in probe_tasks(plan.stages[0].config)}

    yield probe
    for table in (REWARD_FUNCTIONS.contents, REWARD_FUNCTIONS.classes):
        del table["probed_reward"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"raises": "answer"}, f"ProbedReward fails: KeyError: 'answer' ({__file__}"),
        ({"scores": {"score": "high"}}, "got 'high' (str) for 'score'"),
        ({"scores": "one"}, "must return a number, or numbers by name"),
        ({"scores": {"score": float("inf")}}, "gives inf, which is no finite number"),
        ({"score": 1}, "cannot be built: TypeError"),
    ],
)
def test_a_bad_reward_function_is_told_with_its_place(reasons, args: dict[str, object], words: str) -> None:
    found = reasons("probed_reward", args)
    assert list(found) == ["taskset"] and words in found["taskset"], found
    assert found["taskset"].startswith("taskset 'train': the ")


@pytest.mark.parametrize("reward", ["probed_reward", "accuracy_reward", "math_reward", "format_reward"])
def test_a_good_reward_function_is_silent(reasons, reward: str) -> None:
    assert reasons(reward) == {}


def test_a_reward_that_is_the_workflows_own_is_probed(reasons) -> None:
    assert reasons("null", workflow="math_workflow") == {}, "it has one of its own"


PLUGIN = """\
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn

@REWARD_FUNCTIONS.register_module("raising_reward")
class RaisingReward(RewardFn):
    def __call__(self, response, prompt=None, truth=None, **kwargs):
        return {"score": 1 / len(response)}
"""


@pytest.mark.slow
def test_the_command_names_the_file_and_ends_with_an_error(reasons, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "own.py").write_text(PLUGIN)
    (tmp_path / "run.yaml").write_text(RUN % ("simple_workflow", "raising_reward", "{}"))
    command = [sys.executable, "-m", "trinity", "validate", "-c", "run.yaml", "--plugin-dir", "plugins"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 200, "check": False}
    plain, probed = (subprocess.run([*command, *more], **options) for more in ((), ("--probe",)))
    assert plain.returncode == 0, plain.stdout
    assert probed.returncode == 2, probed.stdout
    assert "error[E1912]: taskset 'train': the reward function RaisingReward fails: ZeroDivisionError" in probed.stdout
    assert "plugins/own.py:6 in __call__" in probed.stdout
