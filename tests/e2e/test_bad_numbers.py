"""Numbers that cannot be used, from end to end: rewards of user code, and losses that are not finite."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch
import yaml
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.e2e.tiny_run import TinyRun
from trinity.common.checkpoint import CheckpointStore
from trinity.common.errors import ExitCode, NumericError
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.trainer.state import read_trainer_state

pytestmark = pytest.mark.slow

PLUGINS = '''
"""Rewards of all kinds by task, and a loss that is not finite while a file says so."""

from pathlib import Path

import numpy as np

from trinity.algorithm import POLICY_LOSS_FN, PolicyLossFn
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import SimpleWorkflow

SOUND = (0.0, 1.0, 0.25, 0.75)
FIRST = {
    "0": float("nan"), "1": float("inf"), "2": float("-inf"), "3": None, "4": True, "5": "1.0", "6": 1e30,
    "7": np.float64("nan"), "8": np.float32(0.5), "9": np.int64(2),
}


@WORKFLOWS.register_module("rewards_of_all_kinds")
class RewardsOfAllKinds(SimpleWorkflow):
    """Gives the first rollout of a task the reward that the task's first character names."""

    def run(self):
        experiences = super().run()
        for experience in experiences:
            run = experience.eid.run
            kind = self.raw_task["question"][0]
            experience.reward = FIRST[kind] if run == 0 and kind in FIRST else SOUND[run]
        return experiences


@REWARD_FUNCTIONS.register_module("sometimes_raises")
class SometimesRaises(RewardFn):
    """Cannot score the first response of task r, nor understand task b at all."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, response, prompt=None, truth=None, **kwargs):
        self.num_calls += 1
        if prompt.startswith("r") and self.num_calls == 1:
            raise RewardError("the scorer is not at home")
        if prompt.startswith("b"):
            raise LookupError("no such task")
        return {"accuracy": True}


@POLICY_LOSS_FN.register_module("not_finite_while_broken")
class NotFiniteWhileBroken(PolicyLossFn):
    """REINFORCE, times the logarithm of -1 while the file `broken` is there."""

    def __call__(self, logprob, action_mask, advantages, **kwargs):
        loss = -(advantages * logprob)[action_mask].mean()
        if (Path(__file__).parent.parent / "broken").exists():
            loss = loss * float("nan")
        return loss, {"pg_loss": loss.item()}

    @classmethod
    def default_args(cls):
        return {}
'''


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugins; `broken` beside it is the switch of the loss."""
    folder = tmp_path_factory.mktemp("bad_numbers") / "plugins"
    folder.mkdir()
    (folder / "bad_numbers.py").write_text(PLUGINS)
    return folder


def made(folder: Path, **changes: Any) -> TinyRun:
    run = TinyRun(folder).change(
        deterministic=True,
        checkpoint_root_dir=str(folder / "out"),
        model__model_path=str(folder / "model"),
        algorithm__repeat_times=4,
        buffer__explorer_input__default_workflow_type="rewards_of_all_kinds",
        buffer__explorer_input__default_reward_fn_type="sometimes_raises",
        buffer__explorer_input__taskset__path=str(folder / "train.jsonl"),
    )
    return run.change(**changes)


def finish(run: TinyRun, plugins: Path, *overrides: str) -> None:
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(overrides=overrides, plugin_dirs=(plugins,))
    result = run_plan(plan_run(run.folder / "run.yaml", options), options)
    assert result.error is None


def test_every_kind_of_bad_reward_costs_its_rollout_alone_and_the_group_stays_right(
    tmp_path: Path, plugins: Path
) -> None:
    kinds = "0123456789rb+"
    run = made(tmp_path, buffer__batch_size=len(kinds), buffer__total_steps=1)
    kept = {"name": "kept", "storage_type": "sql", "path": f"sqlite:///{tmp_path}/kept.db"}
    run.change(buffer__trainer_input={"experience_buffer": kept})
    run.write_rows([{"question": f"{kind}+1=", "answer": "1"} for kind in kinds])
    finish(run, plugins)
    with Session(create_engine(kept["path"])) as session:
        rows = [row.to_experience() for row in session.query(ExperienceModel)]
    groups: dict[str, list[Any]] = {}
    for exp in sorted(rows, key=lambda exp: exp.eid.run):
        groups.setdefault(kinds[int(exp.eid.task)], []).append(exp)
    sound = {"8": [0.5, 1.0, 0.25, 0.75], "9": [2.0, 1.0, 0.25, 0.75], "+": [0.0, 1.0, 0.25, 0.75]}
    expected = {kind: [1.0, 0.25, 0.75] for kind in "01234567r"} | sound
    assert {kind: [exp.reward for exp in group] for kind, group in groups.items()} == expected
    for kind, group in groups.items():
        for exp in group:
            advantage = (exp.reward - mean(expected[kind])) / (stdev(expected[kind]) + 1e-6)
            assert exp.advantages[exp.action_mask].tolist() == pytest.approx([advantage] * int(exp.action_mask.sum()))
    (explored,), (trained,) = run.lines("explorer"), run.lines("trainer")
    assert explored["rollout/rejected_run_count"] == 9 and explored["rollout/failed_run_count"] == 4
    assert explored["rollout/reward_error_count"] == 1 and explored["rollout/reward_timeout_count"] == 0
    assert explored["rollout/dropped_group_count"] == 1 and explored["experience_pipeline/experience_count"] == 39
    assert trained["sample/experience_count"] == 39 and trained["sample/incomplete_batch_count"] == 1
    assert trained["actor/skipped_steps"] == 0 and trained["actor/grad_norm"] > 0


@pytest.mark.difference("Gradients that are not finite")
def test_three_gradients_that_are_not_finite_end_the_run_and_its_healthy_checkpoints_stay(
    tmp_path: Path, plugins: Path
) -> None:
    run = made(tmp_path, algorithm__policy_loss_fn="not_finite_while_broken", trainer__max_checkpoints_to_keep=2)
    run.change(buffer__explorer_input__default_reward_fn_type="sometimes_raises", buffer__total_steps=7)
    run.write_rows([{"question": f"+{digit}=", "answer": "1"} for digit in range(4)])
    switch = plugins.parent / "broken"
    finish(run, plugins, "buffer.total_steps=2")
    switch.touch()
    try:
        with pytest.raises(NumericError, match=r"E6001.*last in training step 5 .*quarantine/step_5_1.json") as caught:
            finish(run, plugins)
    finally:
        switch.unlink()
    assert caught.value.exit_code == ExitCode.NUMERIC
    checkpoints = CheckpointStore(run.job)
    healthy = {
        step: checkpoints.manifest(run.job / f"global_step_{step}")["meta"]["is_healthy"]
        for step in checkpoints.steps()
    }
    assert healthy == {1: True, 2: True, 3: False, 4: False}
    weights = [
        torch.load(run.job / f"global_step_{step}/actor/model_world_size_1_rank_0.pt", weights_only=True)
        for step in (2, 4)
    ]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    document = json.loads((run.job / "quarantine" / "step_5_1.json").read_text())
    assert len(document["rows"]) == 8 and document["bad_parameters"]
    finish(run, plugins)
    assert read_trainer_state(run.job / "global_step_7").step == 7
    lines = run.lines("trainer")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["actor/skipped_steps"] for line in lines] == [0, 0, 1, 2, 2, 2, 2]
    assert checkpoints.steps() == [6, 7]
