"""Published import paths: what scripts and plugins import is there, and is the thing itself."""

from __future__ import annotations

import importlib

import pytest
import torch

from trinity.algorithm.utils import masked_whiten, prefix_metrics
from trinity.buffer.operators import create_operators
from trinity.common.config import OperatorConfig
from trinity.common.constants import SyncStyle
from trinity.utils.monitor import gather_metrics
from trinity.utils.timer import Timer

SAME = {
    "trinity.algorithm.advantage_fn:ADVANTAGE_FN": "trinity.algorithm:ADVANTAGE_FN",
    "trinity.algorithm.policy_loss_fn:POLICY_LOSS_FN": "trinity.algorithm:POLICY_LOSS_FN",
    "trinity.algorithm.kl_fn:KL_FN": "trinity.algorithm:KL_FN",
    "trinity.algorithm.entropy_loss_fn:ENTROPY_LOSS_FN": "trinity.algorithm:ENTROPY_LOSS_FN",
    "trinity.algorithm.sample_strategy:SAMPLE_STRATEGY": "trinity.algorithm:SAMPLE_STRATEGY",
    "trinity.algorithm.algorithm:ALGORITHM_TYPE": "trinity.algorithm:ALGORITHM_TYPE",
    "trinity.common.workflows.workflow:WORKFLOWS": "trinity.common.workflows:WORKFLOWS",
    "trinity.common.workflows:MultiTurnWorkflow": "trinity.common.workflows.workflow:MultiTurnWorkflow",
    "trinity.common.workflows:SimpleWorkflow": "trinity.common.workflows.workflow:SimpleWorkflow",
    "trinity.common.workflows:AsyncSimpleWorkflow": "trinity.common.workflows.workflow:AsyncSimpleWorkflow",
    "trinity.common.workflows:MathWorkflow": "trinity.common.workflows.workflow:MathWorkflow",
    "trinity.common.workflows:AsyncMathWorkflow": "trinity.common.workflows.workflow:AsyncMathWorkflow",
    "trinity.common.workflows:StepWiseRewardWorkflow": (
        "trinity.common.workflows.step_wise_workflow:StepWiseRewardWorkflow"
    ),
    "trinity.common.workflows:AsyncRewardPropagationWorkflow": (
        "trinity.common.workflows.step_wise_workflow:AsyncRewardPropagationWorkflow"
    ),
    "trinity.common.config:ReplayBufferConfig": "trinity.common.config.buffer:ReplayBufferConfig",
    "trinity.common.config:ExplorerInput": "trinity.common.config.buffer:ExplorerInput",
    "trinity.common.config:TrainerInput": "trinity.common.config.buffer:TrainerInput",
}


@pytest.mark.parametrize(("published", "home"), SAME.items())
def test_a_published_path_gives_the_thing_itself(published: str, home: str) -> None:
    assert found(published) is found(home)


def found(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def test_styles_have_both_of_their_names() -> None:
    assert SyncStyle.EXPLORER_DRIVEN is SyncStyle.DYNAMIC_BY_EXPLORER
    assert SyncStyle.TRAINER_DRIVEN is SyncStyle.DYNAMIC_BY_TRAINER


def test_metrics_get_a_prefix_and_statistics() -> None:
    into = {"other": 1.0}
    assert prefix_metrics({"loss": 2.0}, "actor", into) is into and into == {"other": 1.0, "actor/loss": 2.0}
    assert prefix_metrics({"loss": 2.0}, "actor") == {"actor/loss": 2.0}
    rows = [{"score": 1.0, "words": 3, "text": "a"}, {"score": 0.0, "words": 5, "text": "b"}, {"score": 2.0}]
    gathered = gather_metrics(rows, "rollout")
    assert gathered == {
        "rollout/score/mean": 1.0,
        "rollout/score/max": 2.0,
        "rollout/score/min": 0.0,
        "rollout/words/mean": 4.0,
        "rollout/words/max": 5.0,
        "rollout/words/min": 3.0,
    }
    assert gather_metrics(rows, "r", ["std"])["r/score/std"] == 1.0 and gather_metrics([], "r") == {}
    with pytest.raises(ValueError, match="output_stats"):
        gather_metrics(rows, "r", ["no_such_statistic"])


def test_a_timer_writes_its_seconds_also_after_a_failure() -> None:
    times: dict[str, float] = {}
    with pytest.raises(KeyError), Timer(times, "time/read"):
        raise KeyError
    assert times["time/read"] >= 0


def test_whitening_may_keep_the_mean() -> None:
    values, mask = torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]])
    plain, kept = masked_whiten(values, mask), masked_whiten(values, mask, shift_mean=False)
    torch.testing.assert_close(plain, torch.tensor([[-(0.5**0.5), 0.5**0.5, 0.0]]))
    torch.testing.assert_close(kept[:, :2], plain[:, :2] + 2.0)
    assert kept[0, 2] == 0


def test_operators_are_made_from_their_configuration() -> None:
    (operator,) = create_operators([OperatorConfig(name="reward_filter", args={"threshold": 0.5})])
    assert type(operator).__name__ == "RewardFilter"
