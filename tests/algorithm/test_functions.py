"""Properties and errors of the algorithm's functions; their numbers are in `tests/oracle`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trinity.algorithm import ADVANTAGE_FN, ENTROPY_LOSS_FN, KL_FN, PolicyLossFn, utils
from trinity.algorithm.advantage_fn.grpo import GRPOGroupedAdvantage, is_repeated
from trinity.algorithm.policy_loss_fn.ppo import PPOPolicyLossFn
from trinity.algorithm.sample_strategy.sample_strategy import DefaultSampleStrategy
from trinity.algorithm.sample_strategy.utils import version_metrics
from trinity.common.errors import DataError
from trinity.common.experience import EID, Experience


def _group(rewards: list[float | None], task: int = 0) -> list[Experience]:
    return [Experience(EID(1, task, run), [1, 2, 3, 4], 2, reward=r) for run, r in enumerate(rewards)]


@pytest.mark.difference("GRPO with equal rewards")
@settings(max_examples=50)
@given(st.floats(-1e6, 1e6), st.integers(2, 9))
def test_equal_rewards_give_exactly_zero(reward: float, size: int) -> None:
    exps, metrics = GRPOGroupedAdvantage().process(_group([reward] * size))
    assert all(bool((exp.advantages == 0).all()) for exp in exps)
    assert metrics["group_advantages/reward_std/mean"] == 0.0 and metrics["filtered_count"] == 0.0


def test_group_metrics_and_filter_count() -> None:
    exps, metrics = GRPOGroupedAdvantage(std_threshold=0.0).process(_group([1.0, 0.0]) + _group([1.0, 1.0], task=1))
    assert [exp.eid.task for exp in exps] == [0, 0] and metrics["filtered_count"] == 2.0
    assert metrics["group_advantages/reward_mean/mean"] == 0.75
    assert metrics["group_advantages/reward_std/max"] == pytest.approx(0.5**0.5)


def test_copies_of_a_group_have_their_own_ids_and_the_same_choice_every_time() -> None:
    def run() -> list[str]:
        exps = sum((_group([1.0, 0.0] if task < 3 else [1.0, 1.0], task) for task in range(6)), [])
        kept, _ = GRPOGroupedAdvantage(std_threshold=0.0, duplicate_experiences=True).process(exps)
        assert [is_repeated(exp) for exp in kept] == [False] * 6 + [True] * 6
        return [exp.eid.uid for exp in kept]

    assert len(set(run())) == 12 and run() == run()


def test_missing_reward_or_logprobs_are_named() -> None:
    with pytest.raises(DataError, match="1/0/1/0/: a group advantage needs a reward"):
        GRPOGroupedAdvantage().process(_group([1.0, None]))
    with pytest.raises(DataError, match="rank_penalty needs logprobs"):
        GRPOGroupedAdvantage(rank_penalty=0.5).process(_group([1.0, 0.0]))


@pytest.mark.parametrize("mode", utils.LOSS_AGG_MODES)
def test_masked_positions_do_not_matter(mode: str) -> None:
    values = torch.tensor([[1.0, 2.0, float("nan")], [4.0, float("inf"), 5.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, True]])
    loss = utils.aggregate_loss(values, mask, mode)
    loss.backward()
    expected = {
        "token-mean": 3.0,
        "seq-mean-token-sum": 6.0,
        "seq-mean-token-mean": 3.0,
        "seq-mean-token-sum-norm": 4.0,
    }
    assert loss.item() == pytest.approx(expected[mode]) and bool((values.grad[~mask] == 0).all())


def test_invalid_arguments_are_refused() -> None:
    values, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="loss_agg_mode must be one of token-mean, .*got 'sum'"):
        utils.aggregate_loss(values, mask, "sum")
    with pytest.raises(ValueError, match="std_cal_level must be group or batch, got 'task'"):
        GRPOGroupedAdvantage(std_cal_level="task")
    with pytest.raises(ValueError, match="needs clip_range"):
        PPOPolicyLossFn(clip_range=None, clip_range_low=0.2)
    with pytest.raises(ValueError, match="clip_ratio_c must be above 1"):
        PPOPolicyLossFn(clip_ratio_c=1.0)
    with pytest.raises(ValueError, match="needs target_kl > 0 and horizon > 0"):
        KL_FN.get("k2")(adaptive=True)
    for coefficient in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"kl_coef must be finite and >= 0, got {coefficient}"):
            KL_FN.get("k3")(kl_coef=coefficient)
        if not coefficient < 0:
            with pytest.raises(ValueError, match=f"entropy_coef must be finite, got {coefficient}"):
                ENTROPY_LOSS_FN.get("mix")(entropy_coef=coefficient)
    for name in ("ppo", "reinforceplusplus", "gigpo"):
        for gamma in (-0.1, 1.1, float("nan")):
            with pytest.raises(ValueError, match=f"must be in .0, 1., got {gamma}"):
                ADVANTAGE_FN.get(name)(gamma=gamma)
    with pytest.raises(ValueError, match="gamma and lam must be in .0, 1., got 1.0 and 2.0"):
        ADVANTAGE_FN.get("ppo")(lam=2.0)
    with pytest.raises(ValueError, match="needs response_mask"):
        KL_FN.get("k2")().calculate_kl_loss(values, values)


def test_policy_loss_names_the_tensors_it_asks_for() -> None:
    class Custom(PolicyLossFn):
        def __call__(self, logprob, old_logprob, action_mask, teacher_logprobs, **kwargs):
            return logprob.sum(), {}

    assert Custom().select_keys == {"old_logprob", "action_mask", "teacher_logprobs"}
    assert Custom(backend="verl").backend == "verl"


def test_default_strategy_reads_batches_and_reports_staleness() -> None:
    import asyncio

    class Source:
        is_closed = False

        async def drop(self, uids: list[str], *, reason: str) -> None:
            raise AssertionError("nothing is dropped")

        async def read(self, num_experiences: int, *, trained_version: int) -> list[Experience]:
            exps = _group([1.0] * num_experiences)
            for version, exp in enumerate(exps):
                exp.info["model_version"] = version
            assert trained_version == 4
            return exps

    exps, metrics, shown = asyncio.run(DefaultSampleStrategy(Source(), batch_size=4).sample(5))
    assert len(exps) == 4 and len(shown) == 3 and shown[0]["id"] == "1/0/0/0/"
    assert metrics["sample/model_version/max"] == 3.0 and metrics["sample/staleness/max"] == 4.0
    for name in ("mean", "min", "max"):
        drift, staleness = (metrics[f"sample/{kind}/{name}"] for kind in ("model_version_drift", "staleness"))
        assert drift == staleness + 1, "it counts the step that is being trained, as the pages say"
    assert metrics["sample/staleness/min"] == 1.0 and metrics["sample/task_count"] == 1.0
    assert version_metrics([], 5) == {}
