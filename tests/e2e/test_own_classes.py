"""A workflow, a reward function and an operator are one file each, in a plugin folder as in Trinity."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import TinyRun
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.launch.validation import check

WORKFLOW = '''
"""The workflow."""

from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import Workflow


@WORKFLOWS.register_module("own_workflow")
class OwnWorkflow(Workflow):
    """Asks a riddle of two columns, and scores the answer with the reward of the taskset."""

    needs = frozenset({"reward_fn"})

    def run(self):
        row = self.task.raw_task
        (answer,) = self.model.chat([{"role": "user", "content": row["riddle"] + row["hint"]}], n=1)
        scores = self.task.reward_fn(**self.task.reward_fn_args)(answer.response_text, truth=row["solution"])
        answer.reward, answer.metrics = sum(scores.values()), scores
        return [answer]
'''
REWARD = '''
"""The reward function."""

from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("own_reward")
class OwnReward(RewardFn):
    """The share of digits in the response, times a factor."""

    ranges = {"factor": "(0, 10]"}

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def __call__(self, response, prompt=None, truth=None, **kwargs):
        digits = sum(character.isdigit() for character in response) / max(len(response), 1)
        return {"own": self.factor * (digits + 0.01 * len(set(response)))}
'''
OPERATOR = '''
"""The operator."""

from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperatorV1


@EXPERIENCE_OPERATORS.register_module("own_operator")
class OwnOperator(ExperienceOperatorV1):
    """Keeps the first rollouts of an explore step."""

    drops_experiences = True
    ranges = {"count": "[1, inf]"}

    def __init__(self, count: int = 4) -> None:
        self.count = count

    async def process(self, exps):
        return exps[: self.count], {"seen": len(exps)}
'''
FILES = {
    "own_workflow": ("trinity.common.workflows", WORKFLOW),
    "own_reward": ("trinity.common.rewards", REWARD),
    "own_operator": ("trinity.buffer.operators", OPERATOR),
}
IN_THE_PACKAGES = """
import importlib, json, sys
from tools.contents import contents
found = {}
for package in sys.argv[2:]:
    importlib.import_module(package).__path__.append(f"{sys.argv[1]}/{package}")
    made = contents(package)
    before = importlib.import_module(f"{package}.registry").CONTENTS
    ((kind, table),) = made.names.items()
    found[kind] = {name: json.loads(made.to_json()) for name in set(table) - set(before.names[kind])}
print(json.dumps(found))
"""


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    (tmp_path / "plugins").mkdir()
    for name, (_, text) in FILES.items():
        (tmp_path / "plugins" / f"{name}.py").write_text(text, encoding="utf-8")
    made = TinyRun(tmp_path).change(
        checkpoint_root_dir=str(tmp_path / "out"),
        model__model_path=str(tmp_path / "model"),
        synchronizer__sync_style="fixed",
        buffer__total_steps=1,
        buffer__train_batch_size=3,
        buffer__explorer_input__default_workflow_type="own_workflow",
        buffer__explorer_input__default_reward_fn_type="own_reward",
        buffer__explorer_input__taskset={
            "name": "riddles",
            "path": str(tmp_path / "train.jsonl"),
            "reward_fn_args": {"factor": 2.0},
        },
        data_processor={"experience_pipeline": {"operators": [{"name": "own_operator", "args": {"count": 3}}]}},
    )
    made.write_rows([{"riddle": f"{n}+{n}", "hint": "=", "solution": str(2 * n)} for n in range(4)])
    return made


def _problems(run: TinyRun) -> list[tuple[str, str]]:
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree), encoding="utf-8")
    found = check(run.folder / "run.yaml", plugin_dirs=(run.folder / "plugins",))[1]
    return [(problem.code, problem.key) for problem in found if problem.is_error]


def test_a_workflow_a_reward_and_an_operator_of_three_files_are_validated_and_run(run: TinyRun) -> None:
    assert _problems(run) == []
    options = RunOptions(plugin_dirs=(run.folder / "plugins",))
    assert run_plan(plan_run(run.folder / "run.yaml", options), options).error is None
    (explored,) = run.lines("explorer")[:1]
    assert explored["experience_pipeline/own_operator/seen"] == 4
    assert explored["experience_pipeline/filtered_count"] == 1
    assert explored["rollout/own/mean"] == pytest.approx(explored["rollout/reward/mean"]) != 0
    (trained,) = [line for line in run.lines("trainer") if "actor/pg_loss" in line]
    assert trained["critic/score/mean"] != 0


def test_what_each_of_them_declares_is_held_before_anything_starts(run: TinyRun) -> None:
    taskset = "buffer.explorer_input.taskset"
    run.change(buffer__explorer_input__taskset__reward_fn_args={"factor": 11.0})
    assert _problems(run) == [("E1302", f"{taskset}.reward_fn_args.factor")]
    run.change(buffer__explorer_input__taskset__reward_fn_args={"faktor": 1.0})
    assert _problems(run) == [("E1703", f"{taskset}.reward_fn_args.faktor")]
    run.change(buffer__explorer_input__taskset__reward_fn_args={})
    operators = "data_processor.experience_pipeline.operators"
    run.change(data_processor__experience_pipeline__operators=[{"name": "own_operator", "args": {"count": 0}}])
    assert _problems(run) == [("E1302", f"{operators}[0].args.count")]
    run.change(data_processor__experience_pipeline__operators=[])
    assert _problems(run) == [("E1824", "buffer.train_batch_size")], "nothing drops a rollout"
    run.change(data_processor__experience_pipeline__operators=[{"name": "own_operator"}])
    del run.tree["buffer"]["explorer_input"]["default_reward_fn_type"]
    assert _problems(run) == [("E1864", f"{taskset}.default_reward_fn_type")]


def test_the_same_files_in_the_packages_need_only_the_tables_to_be_written(run: TinyRun, tmp_path: Path) -> None:
    for name, (package, text) in FILES.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", IN_THE_PACKAGES, str(tmp_path), *(package for package, _ in FILES.values())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {kind: list(table) for kind, table in found.items()} == {
        "workflow": ["own_workflow"], "reward_fn": ["own_reward"], "operator": ["own_operator"],
    }  # fmt: skip
    assert found["workflow"]["own_workflow"]["classes"]["OwnWorkflow"]["needs"] == ["reward_fn"]
    assert found["reward_fn"]["own_reward"]["classes"]["OwnReward"]["args"] == {"factor": 1.0}
    operator = found["operator"]["own_operator"]["classes"]["OwnOperator"]
    assert operator["drops_experiences"] is True and operator["ranges"] == {"count": "[1, inf]"}
