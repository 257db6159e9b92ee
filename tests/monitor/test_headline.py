"""Which metrics a person is shown."""

from __future__ import annotations

import pytest

from trinity.monitor import headline


def test_the_loss_of_sft_comes_before_the_total() -> None:
    assert headline.loss({"actor/final_loss": 2.0, "actor/sft_loss": 1.0}) == 1.0
    assert headline.loss({"actor/final_loss": 2.0}) == 2.0
    assert headline.loss({"actor/grad_norm": 2.0, "actor/sft_loss": None}) is None


def test_accuracy_is_preferred_to_reward_and_neither_is_taken_from_other_metrics() -> None:
    data = {"eval/test/reward/mean@1": 0.4, "eval/test/accuracy/mean@1": 0.3, "eval/test/accuracy/best@2": 0.9}
    assert headline.accuracy(data) == 0.3
    assert headline.accuracy({"eval/test/reward/mean@4": 0.4}) == 0.4
    assert headline.accuracy({"eval/test/time/run_execution/mean@1": 0.4, "rollout/accuracy/mean": 0.5}) is None


def test_tokens_per_second_are_tokens_over_seconds() -> None:
    assert headline.tokens_per_second({"perf/total_num_tokens": 3000, "perf/time_per_step": 1.5}) == 2000.0
    assert headline.tokens_per_second({"perf/total_num_tokens": 3000}) is None


@pytest.mark.parametrize("value", [float("nan"), None])
def test_a_figure_that_is_not_finite_is_not_shown(value: float | None) -> None:
    assert headline.reward({"rollout/accuracy/mean": value}) is None
