"""Recorded choices as experiences: identities, conversations, rewards."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trinity.common.experience import EID, Experience
from trinity.explorer.proxy.experiences import committed_experiences


@dataclass
class Row:
    message_id: str
    prompt: list[int]
    response: list[int]
    reward: float
    task: str | None = "t"
    run_id: int = 0
    choice: int = 0

    @property
    def experience_bytes(self) -> bytes:
        return Experience(
            eid=EID(suffix=self.message_id),
            tokens=torch.tensor(self.prompt + self.response),
            prompt_length=len(self.prompt),
            logprobs=-torch.arange(1.0, len(self.response) + 1),
            info={"model_version": 0, "message_id": self.message_id},
        ).serialize()


def made(*rows: Row) -> list[Experience]:
    return committed_experiences(rows, batch="proxy/4")  # type: ignore[arg-type]


def test_calls_that_go_on_with_one_reward_are_one_experience():
    (whole,) = made(Row("a", [1, 2], [3], 0.5), Row("b", [1, 2, 3, 4], [5, 6], 0.5))
    assert whole.eid.uid == "proxy/4/t/0/0/b" and whole.reward == 0.5
    assert whole.tokens.tolist() == [1, 2, 3, 4, 5, 6] and whole.prompt_length == 2
    assert whole.action_mask is not None and whole.action_mask.tolist() == [True, False, True, True]
    assert whole.logprobs is not None and whole.logprobs.tolist() == [-1.0, 0.0, -1.0, -2.0]
    assert whole.info["message_ids"] == ["a", "b"]


def test_calls_with_rewards_of_their_own_stay_apart():
    first, second = made(Row("a", [1, 2], [3], 0.0), Row("b", [1, 2, 3, 4], [5, 6], 1.0))
    assert [each.eid.uid for each in (first, second)] == ["proxy/4/t/0/0/a", "proxy/4/t/0/1/b"]
    assert [each.reward for each in (first, second)] == [0.0, 1.0]
    assert [each.info["message_ids"] for each in (first, second)] == [["a"], ["b"]]
    assert [each.info.get("follows") for each in (first, second)] == [None, 0] and second.info["shared_tokens"] == 3
    assert second.prompt_length == 4 and second.action_mask is not None and second.action_mask.all()


def test_branches_train_what_they_have_in_common_once():
    left, right = made(
        Row("a", [1], [2], 1.0), Row("b", [1, 2, 3], [4], 1.0), Row("c", [1, 2, 5], [6], 1.0)
    )  # fmt: skip
    assert left.action_mask is not None and right.action_mask is not None
    assert (left.action_mask.tolist(), right.action_mask.tolist()) == ([True, False, True], [False, False, True])
    assert [each.eid.uid for each in (left, right)] == ["proxy/4/t/0/0/b", "proxy/4/t/0/1/c"]


def test_other_runs_and_tasks_are_never_joined_and_a_call_without_a_task_is_one_by_itself():
    rows = [
        Row("a", [1], [2], 1.0, run_id=0),
        Row("b", [1, 2], [3], 1.0, run_id=1),
        Row("c", [1], [2], 1.0, task=None, choice=0),
        Row("c", [1], [4], 0.0, task=None, choice=1),
    ]
    assert [each.eid.rid for each in made(*rows)] == ["proxy/4/t/0", "proxy/4/t/1", "proxy/4/c/0", "proxy/4/c/1"]
