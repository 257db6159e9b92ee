"""Algorithm types of one's own: what they declare is in force, with and without a critic, and they may derive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.plugin_run import prepared_plugin, run_plugin, training_lines
from tests.e2e.tiny_run import TinyRun
from trinity.launch.validation import check

pytestmark = pytest.mark.slow

PLUGIN = '''
from trinity.algorithm.algorithm import ALGORITHM_TYPE, AlgorithmType, GRPOAlgorithm, PPOAlgorithm


@ALGORITHM_TYPE.register_module("mine")
class Mine(AlgorithmType):
    """All of it, as published."""

    use_critic: bool = True
    use_reference: bool = True
    compute_advantage_in_trainer: bool = True
    can_balance_batch: bool = True
    schema: str = "experience"

    @classmethod
    def default_config(cls):
        return {
            "repeat_times": 3,
            "sample_strategy": "default",
            "policy_loss_fn": "ppo",
            "advantage_fn": "ppo",
            "kl_penalty_fn": "none",
            "kl_loss_fn": "k2",
            "entropy_loss_fn": "default",
        }

    @classmethod
    def check_config(cls, config):
        assert config.algorithm.repeat_times >= 2, "needs two attempts"


@ALGORITHM_TYPE.register_module(module_name="groups")
class Groups(GRPOAlgorithm):
    can_balance_batch: bool = False

    @classmethod
    def default_config(cls):
        return {**GRPOAlgorithm.default_config(), "policy_loss_fn": "gspo", "kl_loss_fn": "none"}


class Short(PPOAlgorithm):
    @classmethod
    def default_config(cls):
        config = super().default_config()
        config["kl_penalty_fn"] = "none"
        return config


ALGORITHM_TYPE.register_module(module_name="short", module_cls=Short)
'''


def settings(name: str, **more: Any) -> dict[str, Any]:
    """Return the changes of a run with the type and what it says by itself."""
    return {"algorithm": {"algorithm_type": name, "optimizer": {"lr": 1.0e-3}, **more}}


@pytest.fixture(scope="module")
def with_critic(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return run_plugin(tmp_path_factory.mktemp("critic"), PLUGIN, **settings("mine"))


def test_a_type_with_a_critic_trains_it(with_critic: TinyRun) -> None:
    first, second = training_lines(with_critic)
    assert first["sample/rollout_count"] == 6, "two tasks of three attempts"
    assert {"critic/vf_loss", "critic/values/mean", "actor/pg_loss", "actor/kl_loss"} <= first.keys()
    assert first["critic/vf_loss"] != second["critic/vf_loss"]
    saved = {path.name for path in (with_critic.job / "global_step_2").iterdir()}
    assert {"actor", "critic"} <= saved


def test_a_type_may_derive_from_a_shipped_one_and_keep_its_rows_in_order(tmp_path: Path) -> None:
    run = run_plugin(tmp_path, PLUGIN, **settings("groups"))
    lines = training_lines(run)
    assert lines[0]["sample/rollout_count"] == 16, "eight attempts of GRPO's default"
    assert all("actor/kl_loss" not in line and "critic/vf_loss" not in line for line in lines)


def test_a_type_that_is_registered_by_a_call_and_asks_its_base(tmp_path: Path) -> None:
    lines = training_lines(run_plugin(tmp_path, PLUGIN, **settings("short")))
    assert all("critic/vf_loss" in line and "critic/kl" not in line for line in lines)


@pytest.mark.difference("Algorithm types of plugins")
@pytest.mark.parametrize(
    ("text", "changed", "word"),
    [
        ("use_critic: bool = True", "use_critic: bool = False", "use_critic"),
        ("compute_advantage_in_trainer: bool = True", "compute_advantage_in_trainer: bool = False", "in_trainer"),
        ('"kl_loss_fn": "k2"', '"kl_los_fn": "k2"', "kl_los_fn"),
        ('schema: str = "experience"', 'schema: str = "tables"', "schema"),
        ('"repeat_times": 3', '"repeat_times": 1', "needs two attempts"),
    ],
)
def test_a_type_that_its_functions_contradict_is_refused(tmp_path: Path, text: str, changed: str, word: str) -> None:
    assert text in PLUGIN
    ended = prepared_plugin(tmp_path, PLUGIN.replace(text, changed), **settings("mine")).finish()
    assert ended.status in (2, 3) and word in ended.output, ended.output[-1500:]


def test_a_file_is_valid_where_it_runs(with_critic: TinyRun) -> None:
    folder = with_critic.folder
    found = check(folder / "run.yaml", plugin_dirs=(folder / "plugins",), schema_only=True)[1]
    assert not [problem for problem in found if problem.is_error]
