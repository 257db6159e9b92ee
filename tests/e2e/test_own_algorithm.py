"""An advantage, a loss and an algorithm are one file each: nothing else is edited, in a plugin folder or in Trinity."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.plugin_texts import REWARD
from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import TinyRun
from trinity.catalogue import builtin_catalogue
from trinity.common.config import load_plan
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.launch.validation import check

ADVANTAGE = '''
"""The advantage."""

from trinity.algorithm import ADVANTAGE_FN
from trinity.algorithm.advantage_fn import TokenAdvantage


@ADVANTAGE_FN.register_module("own_advantage")
class OwnAdvantage(TokenAdvantage):
    """The rewards minus their mean over the batch, times a factor."""

    formula = "{factor} (R - mean(R))"
    ranges = {"factor": "(0, inf]"}

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def __call__(self, token_level_rewards, action_mask, uid):
        rewards = token_level_rewards.sum(-1, keepdim=True)
        advantages = self.factor * (rewards - rewards.mean()) * action_mask
        return advantages, advantages.clone(), {"own_factor": self.factor}
'''
LOSS = '''
"""The loss."""

from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.policy_loss_fn import TokenLossFn


@POLICY_LOSS_FN.register_module("own_loss")
class OwnLoss(TokenLossFn):
    """A policy gradient with a pull to the reference."""

    formula = "-A logprob + {pull} (logprob - ref_logprob)^2"

    def __init__(self, backend: str = "verl", pull: float = 0.5, loss_agg_mode: str = "seq-mean-token-mean") -> None:
        super().__init__(backend, loss_agg_mode)
        self.pull = pull

    def __call__(self, logprob, ref_logprob, action_mask, advantages):
        loss = self.aggregate(-advantages * logprob + self.pull * (logprob - ref_logprob) ** 2, action_mask)
        return loss, {"pg_loss": loss.item(), "own_pull": self.pull}
'''
ALGORITHM = '''
"""The algorithm."""

from trinity.algorithm import ALGORITHM_TYPE, AlgorithmType


@ALGORITHM_TYPE.register_module("own_algorithm")
class OwnAlgorithm(AlgorithmType):
    """Both, and no other term."""

    use_reference = True
    compute_advantage_in_trainer = True
    defaults = {
        "repeat_times": 4, "advantage_fn": "own_advantage", "advantage_fn_args": {"factor": 2.0},
        "policy_loss_fn": "own_loss", "kl_loss_fn": "none", "entropy_loss_fn": "none",
    }
'''
FILES = {"own_advantage": ADVANTAGE, "own_loss": LOSS, "own_algorithm": ALGORITHM}
IN_THE_PACKAGE = """
import json, sys
import trinity.algorithm
trinity.algorithm.__path__.append(sys.argv[1])
from tools.contents import contents
made = contents("trinity.algorithm")
before = trinity.algorithm.CONTENTS
assert {kind: set(made.names[kind]) - set(table) for kind, table in before.names.items()} == {
    "algorithm_type": {"own_algorithm"}, "advantage_fn": {"own_advantage"}, "policy_loss_fn": {"own_loss"},
    "kl_fn": set(), "entropy_loss_fn": set(), "sample_strategy": set()}
open(sys.argv[2], "w").write(made.to_json())
"""


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    (tmp_path / "plugins").mkdir()
    for name, text in FILES.items():
        (tmp_path / "plugins" / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "plugins" / "reward.py").write_text(REWARD, encoding="utf-8")
    made = TinyRun(tmp_path).change(
        checkpoint_root_dir=str(tmp_path / "out"),
        model__model_path=str(tmp_path / "model"),
        algorithm={"algorithm_type": "own_algorithm", "optimizer": {"lr": 1.0e-3}},
        buffer__total_steps=1,
        buffer__explorer_input__default_reward_fn_type="share_of_digits",
        buffer__explorer_input__taskset__path=str(tmp_path / "train.jsonl"),
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(made.tree), encoding="utf-8")
    return made


def test_an_algorithm_of_three_files_is_validated_and_trains(run: TinyRun) -> None:
    plugins = run.folder / "plugins"
    problems = check(run.folder / "run.yaml", plugin_dirs=(plugins,))[1]
    assert not [problem for problem in problems if problem.is_error], problems
    options = RunOptions(plugin_dirs=(plugins,))
    plan = plan_run(run.folder / "run.yaml", options)
    algorithm = plan.stages[0].config.algorithm
    assert (algorithm.repeat_times, algorithm.advantage_fn, algorithm.policy_loss_fn) == (
        4,
        "own_advantage",
        "own_loss",
    )
    assert algorithm.advantage_fn_args == {"factor": 2.0}
    assert algorithm.policy_loss_fn_args == {"pull": 0.5, "loss_agg_mode": "seq-mean-token-mean"}
    assert algorithm.loss_agg_mode == "seq-mean-token-mean"
    assert run_plan(plan, options).error is None
    (line,) = [line for line in run.lines("trainer") if "actor/pg_loss" in line]
    assert (line["critic/own_factor"], line["actor/own_pull"]) == (2.0, 0.5)
    assert line["actor/pg_loss"] != 0 and line["actor/grad_norm"] > 0


def test_the_same_files_in_the_package_need_only_the_table_to_be_written(run: TinyRun, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name, text in FILES.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    written = tmp_path / "contents.json"
    command = [sys.executable, "-c", IN_THE_PACKAGE, str(package), str(written)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(written.read_text(encoding="utf-8"))
    assert made["names"]["policy_loss_fn"]["own_loss"] == ["OwnLoss", ""]
    assert made["classes"]["OwnLoss"]["args"] == {"pull": 0.5, "loss_agg_mode": "seq-mean-token-mean"}
    assert made["classes"]["OwnAlgorithm"]["args"]["advantage_fn"] == "own_advantage"
    as_plugin = load_plan(run.folder / "run.yaml", catalogue=builtin_catalogue([run.folder / "plugins"]))
    assert made["classes"]["OwnAlgorithm"]["args"]["repeat_times"] == as_plugin.stages[0].config.algorithm.repeat_times
