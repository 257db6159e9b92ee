"""The way from rollouts to the store: order of the operators, counts, advantages, and errors of user code."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trinity.algorithm.advantage_fn.grpo import GRPOGroupedAdvantage
from trinity.buffer.operators import ExperienceOperator, ExperienceOperatorV1, build_operators
from trinity.buffer.pipelines import ExperiencePipeline
from trinity.common.errors import ConfigError, DeadlineError, WorkflowError
from trinity.common.experience import EID, Experience


def step(rewards: dict[int, list[float]]) -> list[Experience]:
    """Return one experience a reward: task -> rewards of its runs; two prompt and three response tokens each."""
    return [
        Experience(EID(1, task, run), [5, 6, 7, 8, 9], prompt_length=2, reward=reward, info={"bonus": 1.0})
        for task, values in rewards.items()
        for run, reward in enumerate(values)
    ]


def operators(*settings: tuple[str, dict[str, Any]]) -> list[Any]:
    return build_operators([SimpleNamespace(name=name, args=args) for name, args in settings])


class Doubling(ExperienceOperator):
    """A published operator of the first form: synchronous."""

    def __init__(self) -> None:
        self.is_closed = False

    def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        for experience in exps:
            experience.reward *= 2
        return exps, {"doubled_count": len(exps), "note": "no number"}

    def close(self) -> None:
        self.is_closed = True


class Broken(ExperienceOperatorV1):
    """Returns or raises what it is told."""

    def __init__(self, result: Any) -> None:
        self.result = result

    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, Any]]:
        if isinstance(self.result, Exception):
            raise self.result
        if self.result == "hang":
            await asyncio.sleep(60)
        return self.result


def test_operators_run_in_order_and_the_group_advantage_comes_last() -> None:
    chain = operators(
        ("reward_shaping_mapper", {"reward_shaping_configs": [{"stats_key": "bonus", "op_type": "ADD"}]}),
        ("reward_filter", {"threshold": 1.5}),
    )
    pipeline = ExperiencePipeline(chain, GRPOGroupedAdvantage())
    # + 1 each: task 0: 1, 2, 4 of which 1 is dropped; task 1: 3, 3
    exps, metrics = asyncio.run(pipeline.process(step({0: [0.0, 1.0, 3.0], 1: [2.0, 2.0]})))
    assert [e.eid.uid for e in exps] == ["1/0/1/0/", "1/0/2/0/", "1/1/0/0/", "1/1/1/0/"]
    # rewards 2 and 4: mean 3, unbiased deviation sqrt(2) (+ 1e-6)
    assert [round(e.advantages[0].item(), 5) for e in exps] == [-0.70711, 0.70711, 0.0, 0.0]
    assert metrics["reward_filter/filtered_count"] == 1
    assert metrics["filtered_count"] == 1
    # what an operator measures also has the published name, without the operator's
    assert metrics["reward_diff/mean"] == metrics["reward_shaping_mapper/reward_diff/mean"] == 1.0
    assert metrics["experience_count"] == 4
    assert metrics["group_advantages/reward_mean/max"] == 3.0
    assert metrics["time/reward_filter"] >= 0


def test_a_reward_that_an_operator_made_infinite_is_rejected_and_counted() -> None:
    exps = step({0: [1.0, 2.0]})
    exps[0].reward = float("inf")
    left, metrics = asyncio.run(ExperiencePipeline().process(exps))
    assert [e.reward for e in left] == [2.0]
    assert (metrics["rejected_count"], metrics["filtered_count"], metrics["experience_count"]) == (1, 1, 1)


def test_groups_that_the_advantage_drops_are_counted() -> None:
    pipeline = ExperiencePipeline([], GRPOGroupedAdvantage(std_threshold=0.0))
    left, metrics = asyncio.run(pipeline.process(step({0: [1.0, 1.0], 1: [0.0, 1.0]})))
    assert {e.eid.task for e in left} == {1}
    assert metrics["filtered_count"] == 2


def test_an_empty_step_passes() -> None:
    pipeline = ExperiencePipeline(operators(("reward_std_filter", {})), GRPOGroupedAdvantage())
    exps, metrics = asyncio.run(pipeline.process([]))
    assert exps == [] and metrics["experience_count"] == 0 and metrics["filtered_count"] == 0


def test_operators_of_the_first_form_run_and_are_closed() -> None:
    operator = Doubling()

    async def main() -> dict[str, float]:
        pipeline = ExperiencePipeline([operator, operator])
        await pipeline.prepare()
        exps, metrics = await pipeline.process(step({0: [1.5]}))
        assert exps[0].reward == 6.0
        await pipeline.close()
        return metrics

    metrics = asyncio.run(main())
    assert metrics["Doubling/doubled_count"] == metrics["Doubling_1/doubled_count"] == 1
    assert "Doubling/note" not in metrics
    assert operator.is_closed


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (KeyError("score"), "experience operator Broken failed on 1 experiences: KeyError: 'score'"),
        (None, r"experience operator Broken must return \(list of Experience, dict of metrics\), got NoneType"),
        (([1], {}), "must return"),
    ],
)
def test_an_operator_that_fails_is_named(result: Any, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        asyncio.run(ExperiencePipeline([Broken(result)]).process(step({0: [1.0]})))


def test_an_operator_that_hangs_reaches_a_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineError, match="0.2 s waiting for experience operator Broken; raise explorer"):
        asyncio.run(ExperiencePipeline([Broken("hang")], timeout_s=0.2).process(step({0: [1.0]})))
    assert time.monotonic() - started < 30


def test_unknown_operators_and_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown experience operator 'reward_fliter'; did you mean 'reward_filter'?"):
        operators(("reward_fliter", {}))
    with pytest.raises(ConfigError, match=r"operators\[0\].args of reward_filter: got an unexpected keyword argument"):
        operators(("reward_filter", {"treshold": 1}))
