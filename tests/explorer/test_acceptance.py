"""What is taken from user code, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.explorer.scripted import REWARDS, Repeating, Scripted, experience, make
from trinity.common.errors import WorkflowError
from trinity.common.experience import EID, Experience
from trinity.common.models.whole import Whole
from trinity.explorer.acceptance import accept, of_batch
from trinity.explorer.outcome import Completed, Failed, Rejected, RewardFailed


def take(returned: Any, *, runs: range = range(1), can_repeat: bool = False, **more: Any) -> list[Any]:
    task = of_batch(make(Repeating if can_repeat else Scripted), batch=3, index=2)
    return accept(returned, task, runs=runs, can_repeat=can_repeat, model_version=4, **more)


def uids(outcomes: list[Any]) -> list[str]:
    return [e.eid.uid for outcome in outcomes for e in outcome.experiences]


def test_ids_version_and_task_are_set() -> None:
    (outcome,) = take([experience(), experience(info={"model_version": 3})], runs=range(5, 6))
    assert uids([outcome]) == ["3/2/5/0/", "3/2/5/1/"]
    assert [e.info for e in outcome.experiences] == [
        {"model_version": 4, "task_index": {"index": 7, "taskset_id": 0}},
        {"model_version": 3, "task_index": {"index": 7, "taskset_id": 0}},
    ]


def test_turns_keep_their_numbers_and_are_sorted() -> None:
    ids = [EID(step=1), EID(step=0), EID(step=0, suffix="b")]
    (outcome,) = take([experience(eid=eid) for eid in ids])
    assert uids([outcome]) == ["3/2/0/0/", "3/2/0/0/b", "3/2/0/1/"]


def test_all_sequences_of_a_conversation_are_taken_in_their_order() -> None:
    """Two runs of one call, one whose conversation is two sequences; in the other they are between other turns."""

    def whole(eid: EID) -> Whole:
        info = {"trajectory": 1, "follows": 0}
        made = Whole(eid=eid, tokens=[1, 2], reward=0.5, info=info, of_model=frozenset(info))
        made.earlier = [Experience(tokens=[1, 3], info={"trajectory": 0})]
        return made

    one, two = take([whole(EID(run=4)), experience(eid=EID(run=5))], runs=range(4, 6), can_repeat=True)
    assert uids([one, two]) == ["3/2/4/0/", "3/2/4/1/", "3/2/5/0/"]
    assert [(exp.tokens.tolist(), exp.reward) for exp in one.experiences] == [([1, 3], 0.5), ([1, 2], 0.5)]
    assert [type(exp) for exp in one.experiences] == [Experience, Experience]
    turns = [experience(eid=EID(step=7)), whole(EID(step=5)), experience(eid=EID(step=3))]
    (outcome,) = take(turns)
    assert uids([outcome]) == [f"3/2/0/{step}/" for step in range(4)]
    assert [exp.info.get("trajectory") for exp in outcome.experiences] == [None, 0, 1, None]


def test_a_repeating_workflow_is_numbered_by_its_own_ids_or_by_position() -> None:
    runs = range(4, 7)
    own = [experience(eid=EID(run=run)) for run in (6, 4, 5)]
    assert uids(take(own, runs=runs, can_repeat=True)) == ["3/2/4/0/", "3/2/5/0/", "3/2/6/0/"]
    assert uids(take([experience() for _ in runs], runs=runs, can_repeat=True)) == ["3/2/4/0/", "3/2/5/0/", "3/2/6/0/"]
    turns = [experience(eid=EID(run=run, step=step)) for run in runs for step in range(2)]
    assert len(take(turns, runs=runs, can_repeat=True)[2].experiences) == 2


@pytest.mark.parametrize("what", REWARDS)
def test_a_reward_that_is_no_finite_number_rejects_the_run(what: str) -> None:
    (outcome,) = take([experience(REWARDS[what])])
    assert isinstance(outcome, Rejected)
    assert "reward must be a finite number" in outcome.reason and repr(REWARDS[what]) in outcome.reason


@pytest.mark.parametrize("reward", [1, 0, -2.5, np.float32(0.5), np.int64(3)])
def test_real_numbers_are_rewards(reward: Any) -> None:
    (outcome,) = take([experience(reward)])
    assert type(outcome.experiences[0].reward) is float and outcome.experiences[0].reward == float(reward)


def test_token_level_rewards_make_up_a_missing_reward() -> None:
    (outcome,) = take([experience(None, token_level_reward=torch.tensor([0.25, 0.0, 0.5]))])
    assert outcome.experiences[0].reward == 0.75
    masked = experience(None, token_level_reward=torch.tensor([0.25, 4.0, 0.5]), action_mask=[True, False, True])
    (outcome,) = take([masked])
    assert outcome.experiences[0].reward == 4.75, "one on a token that the policy did not say counts, too"
    (outcome,) = take([experience(1.0, token_level_reward=torch.tensor([0.25, math.nan, 0.5]))])
    assert outcome == Rejected("Scripted: token_level_reward must be finite")


def test_metrics_must_be_numbers_and_truth_values_count_as_such() -> None:
    (outcome,) = take([experience(metrics={"accuracy": True})])
    assert outcome.experiences[0].metrics == {"accuracy": 1.0}
    (outcome,) = take([experience(metrics={"accuracy": math.nan})])
    assert outcome == Rejected("Scripted: metric 'accuracy' must be a finite number, got nan (float)")


def test_one_bad_reward_leaves_the_other_runs_of_the_group() -> None:
    outcomes = take([experience(1.0), experience(math.nan), experience(0.0)], runs=range(3), can_repeat=True)
    assert [type(o) for o in outcomes] == [Completed, Rejected, Completed]


def test_runs_that_are_left_out_are_failed_or_carry_the_workflows_reason() -> None:
    one = [experience(eid=EID(run=1))]
    assert take(one, runs=range(2), can_repeat=True)[0] == Failed("Repeating returned no experience for the rollout")
    left_out = take(one, runs=range(2), can_repeat=True, dropped=["the scorer ran out of time"])[0]
    assert left_out == RewardFailed("reward: the scorer ran out of time")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "Scripted must return a list of Experience, got NoneType"),
        (experience(), "must return a list of Experience, got Experience"),
        (["a", 1], "must return a list of Experience, got a list with int, str"),
        ([experience(eid=EID(step=1)), experience(eid=EID(step=1))], r"of one turn \(eid.step \[1, 1\]\)"),
    ],
)
def test_other_results_are_errors(returned: Any, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        take(returned)


def test_repeats_that_cannot_be_told_apart_are_errors() -> None:
    with pytest.raises(
        WorkflowError, match="2 rollouts of a task in one call and returned 3 experiences whose eid.run is not in 4..5"
    ):
        take([experience() for _ in range(3)], runs=range(4, 6), can_repeat=True)
