"""Advantages from the token rewards of a whole batch, in the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import make_experiences
from tests.trainer.test_update import worker
from trinity.common.config import Config
from trinity.common.errors import ConfigError, DataError
from trinity.common.experience import Experience
from trinity.trainer.batch import TrainBatch, collate
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
PENALTY = {"kl_penalty_fn": "k1", "kl_penalty_fn_args": {"kl_coef": 0.5}}
ADAPTIVE = {"kl_penalty_fn": "k1", "kl_penalty_fn_args": {
    "adaptive": True, "kl_coef": 0.5, "target_kl": 1e-3, "horizon": 40}}  # fmt: skip


def _made(make_config: Maker, name: str, **algorithm: Any) -> ActorWorker:
    return worker(make_config(algorithm={"advantage_fn": name, "repeat_times": 4, **algorithm}))


def _experiences(rewards: list[float]) -> list[Experience]:
    """Return experiences of two tasks that have rewards and no advantages."""
    experiences = make_experiences(1, tasks=2, repeats=len(rewards) // 2)
    for exp, reward in zip(experiences, rewards, strict=True):
        exp.reward, exp.advantages = reward, None
    return experiences


def _advantages(made: ActorWorker, experiences: list[Experience]) -> tuple[TrainBatch, dict[str, float]]:
    return made._with_advantages(made._with_logprobs(collate(experiences)), experiences)


REWARDS = [1.0, 0.0, 0.0, 0.0, 3.0, 2.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("rloo", {}, [1.0, -1 / 3, -1 / 3, -1 / 3, 4 / 3, 0.0, 0.0, -4 / 3]),
        ("verl_grpo", {"norm_adv_by_std_in_grpo": False}, [0.75, -0.25, -0.25, -0.25, 1.0, 0.0, 0.0, -1.0]),
        ("grpo_passk", {"norm_adv_by_std_in_grpo": False}, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
        ("gpg", {}, [8 / 5 * a for a in (0.75, -0.25, -0.25, -0.25, 1.0, 0.0, 0.0, -1.0)]),
        ("opmd_verl", {}, [0.75, -0.25, -0.25, -0.25, 1.0, 0.0, 0.0, -1.0]),
    ],
)
def test_groups_are_the_tasks_and_every_counted_token_has_the_number(
    make_config: Maker, name: str, args: dict[str, Any], expected: list[float]
) -> None:
    batch, metrics = _advantages(_made(make_config, name, advantage_fn_args=args), _experiences(REWARDS))
    wanted = torch.tensor(expected)[:, None] * batch.action_mask
    torch.testing.assert_close(batch.columns["advantages"], wanted)
    torch.testing.assert_close(batch.columns["returns"], wanted)
    assert metrics["critic/incomplete_groups"] == 0.0
    assert metrics.get("critic/gpg_alpha", 1.6) == pytest.approx(1.6)


def test_the_whole_batch_is_whitened_whatever_the_mini_batches(make_config: Maker) -> None:
    made = _made(make_config, "reinforceplusplus")
    batch, _ = _advantages(made, _experiences(REWARDS))
    counted = batch.columns["advantages"][batch.action_mask]
    assert float(counted.mean()) == pytest.approx(0.0, abs=1e-6) and float(counted.std()) == pytest.approx(1.0)
    assert made.train_step(_experiences(REWARDS), 1)["critic/returns/max"] == 3.0


def test_the_order_of_rows_does_not_change_an_advantage(make_config: Maker) -> None:
    made, experiences = _made(make_config, "opo"), _experiences(REWARDS)
    order = [5, 0, 7, 2, 1, 4, 3, 6]
    batch, shuffled = _advantages(made, experiences)[0], _advantages(made, [experiences[i] for i in order])[0]
    torch.testing.assert_close(shuffled.columns["advantages"], batch.columns["advantages"][order])


def test_a_response_that_is_not_trained_on_counts_in_its_task(make_config: Maker) -> None:
    experiences = _experiences(REWARDS)
    experiences[0].action_mask = torch.zeros_like(experiences[0].action_mask)
    advantages = _advantages(_made(make_config, "rloo"), experiences)[0].columns["advantages"]
    assert not advantages[0].any()
    assert float(advantages[1].min()) == pytest.approx(-1 / 3)


@pytest.mark.difference("Groups in a training batch")
def test_a_group_that_lost_a_member_is_counted(make_config: Maker) -> None:
    batch, metrics = _advantages(_made(make_config, "rloo"), _experiences(REWARDS)[1:])
    assert metrics["critic/incomplete_groups"] == 1.0
    assert float(batch.columns["advantages"][0].max()) == 0.0, "the other three have the same reward"


@pytest.mark.parametrize("reward", [None, math.nan])
def test_a_missing_reward_is_named(make_config: Maker, reward: float | None) -> None:
    experiences = _experiences(REWARDS)
    experiences[2].reward = reward
    with pytest.raises(DataError, match="experience 1/0/2/0/: the advantage needs a reward, got nan; 1 of 8") as caught:
        _made(make_config, "rloo").train_step(experiences, 1)
    assert caught.value.code == "E4601"


def test_rewards_of_tokens_go_before_the_reward_of_the_response(make_config: Maker) -> None:
    experiences = _experiences(REWARDS)
    for exp in experiences:
        exp.token_level_reward = torch.zeros(exp.response_length)
        exp.token_level_reward[0] = 2.0 * (exp.reward or 0.0)
    batch, _ = _advantages(_made(make_config, "rloo"), experiences)
    assert float(batch.columns["advantages"].max()) == pytest.approx(8 / 3)


def test_the_reward_of_a_token_that_the_policy_did_not_say_is_credited_to_the_one_before(make_config: Maker) -> None:
    """So the response has the same reward here, in the pipeline and in the baseline of its task."""
    said, shown = _experiences(REWARDS), _experiences(REWARDS)
    for row, (exp, other) in enumerate(zip(said, shown, strict=True)):
        for each, place in ((exp, 0), (other, 1 + row % 2)):
            each.action_mask = torch.ones(each.response_length, dtype=torch.bool)
            each.action_mask[1:3] = False
            each.token_level_reward = torch.zeros(each.response_length)
            each.token_level_reward[place] = each.reward or 0.0
            each.token_level_reward[-1] += 0.25 * row
        assert other.token_level_reward is not None and other.reward is not None
        assert float(other.token_level_reward.sum()) == pytest.approx(other.reward + 0.25 * row)
    for name in ("rloo", "reinforceplusplus"):
        made = _made(make_config, name)
        (wanted, _), (found, _) = _advantages(made, said), _advantages(made, shown)
        assert wanted.columns["advantages"].any()
        torch.testing.assert_close(found.columns["advantages"], wanted.columns["advantages"])
        torch.testing.assert_close(found.columns["returns"], wanted.columns["returns"])


def test_the_penalty_lowers_the_reward_of_every_counted_token(make_config: Maker) -> None:
    made = _made(make_config, "reinforceplusplus", **PENALTY)
    batch, metrics = _advantages(made, _experiences(REWARDS))
    divergence = (batch.columns["old_logprob"] - batch.columns["ref_logprob"]) * batch.action_mask
    scores = torch.tensor(REWARDS) - 0.5 * divergence.sum(-1)
    first = batch.action_mask.float().argmax(-1)
    torch.testing.assert_close(batch.columns["returns"][torch.arange(8), first], scores)
    assert metrics["critic/rewards/mean"] == pytest.approx(float(scores.mean()))
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5


def test_an_adaptive_penalty_is_continued_from_the_checkpoint(make_config: Maker, tmp_path: Path) -> None:
    made, again = (_made(make_config, "grpo_verl", **ADAPTIVE) for _ in range(2))
    made.train_step(_experiences(REWARDS), 1)
    made.save(tmp_path, hf=False)
    assert made.advantage is not None and again.advantage is not None
    assert made.advantage.kl.kl_coef != 0.5 == again.advantage.kl.kl_coef
    again.load(tmp_path)
    assert again.advantage.kl.kl_coef == made.advantage.kl.kl_coef


def test_a_penalty_needs_the_old_log_probabilities(make_config: Maker) -> None:
    experiences = _experiences(REWARDS)
    experiences[0].logprobs = None
    with pytest.raises(DataError, match="algorithm.kl_penalty_fn needs old_logprob"):
        _made(make_config, "grpo_verl", **PENALTY).train_step(experiences, 1)


def test_what_cannot_work_is_refused_before_the_first_step(make_config: Maker) -> None:
    with pytest.raises(ConfigError, match="kl_penalty_fn k1 has no effect: the advantage grpo is computed before"):
        _made(make_config, "grpo", **PENALTY)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'gama'"):
        _made(make_config, "reinforceplusplus", advantage_fn_args={"gama": 1.0})


def test_a_tensor_that_nothing_provides_is_named(make_config: Maker) -> None:
    with pytest.raises(DataError, match="REMAXAdvantage needs reward_baselines, which the experiences do not hold"):
        _made(make_config, "remax").train_step(_experiences(REWARDS), 1)
