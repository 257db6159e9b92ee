"""Calls that continue from each other as one experience: tokens, masks, log-probabilities, versions."""

from __future__ import annotations

from typing import Any

import torch

from trinity.common.experience import Experience
from trinity.common.models.trajectories import joined, trajectories
from trinity.common.workflows.envs.turns import finished


def call(prompt: list[int], response: list[int], **fields: Any) -> Experience:
    return Experience(
        tokens=torch.tensor(prompt + response),
        prompt_length=len(prompt),
        logprobs=[-float(token) for token in response],
        **{"info": {"model_version": 1}, "prompt_text": str(prompt), "response_text": str(response)} | fields,
    )


def parts(exp: Experience) -> tuple[list[int], int, list[int], list[float]]:
    assert exp.action_mask is not None and exp.logprobs is not None
    return exp.tokens.tolist(), exp.prompt_length, exp.action_mask.int().tolist(), exp.logprobs.tolist()


def test_calls_that_go_on_from_each_other_are_one_experience() -> None:
    calls = [call([1, 2], [3, 4]), call([1, 2, 3, 4, 9], [5]), call([1, 2, 3, 4, 9, 5, 9, 9], [6, 7])]
    (made,) = trajectories(calls)
    said = [-3.0, -4.0, 0.0, -5.0, 0.0, 0.0, -6.0, -7.0]
    assert parts(made) == ([1, 2, 3, 4, 9, 5, 9, 9, 6, 7], 2, [1, 1, 0, 1, 0, 0, 1, 1], said)
    assert made.info == {"model_version": 1, "call_count": 3}


def test_calls_with_images_stay_apart() -> None:
    """Their tokens do not tell the images, and a joined call would have those of none."""
    images = [{"image_places": torch.tensor([[1, 2]]), "image_sizes": torch.tensor([size])} for size in (3, 4)]
    calls = [
        call([1, 2, 8], [3], multi_modal_inputs=images[0]),
        call([1, 2, 8, 3, 9], [5], multi_modal_inputs=images[0]),
        call([1, 2, 8, 3, 9, 5], [6], multi_modal_inputs=images[1]),
        call([1, 2, 8, 3, 9, 5, 6], [7]),
    ]
    assert [parts(exp) for exp in trajectories(calls)] == [parts(exp) for exp in calls]


def test_every_response_of_a_tree_is_trained_once() -> None:
    """Two branches from one answer, a sub-agent of its own, and a branch that goes on later."""
    root = call([1], [2])
    left, right = call([1, 2, 8], [3]), call([1, 2, 9], [4])
    agent, again = call([7], [6]), call([1, 2, 8, 3, 9], [5])
    made = trajectories([root, left, right, agent, again])
    assert [parts(exp)[:3] for exp in made] == [
        ([1, 2, 9, 4], 1, [1, 0, 1]),
        ([7, 6], 1, [1]),
        ([1, 2, 8, 3, 9, 5], 1, [0, 0, 1, 0, 1]),
    ]
    trained = sum(int(exp.action_mask.sum()) for exp in made if exp.action_mask is not None)
    assert trained == 5, "as many tokens as were sampled"
    assert links(made) == [(0, None, None), (1, 0, 0), (2, 0, 2)]


def links(made: list[Experience]) -> list[tuple[int | None, ...]]:
    return [tuple(exp.info.get(name) for name in ("trajectory", "follows", "shared_tokens")) for exp in made]


def test_a_summary_follows_what_it_stands_for() -> None:
    """Twice: what the system says, 1 2, is all that stays; a sub-agent 1 8 of the first one is none of theirs."""
    agent = [call([1, 2, 5], [6]), call([1, 2, 5, 6, 7], [4]), call([1, 8, 3], [9])]
    once, twice = [call([1, 2, 3], [4]), call([1, 2, 3, 4, 7], [7])], [call([1, 2, 4], [5])]
    made = trajectories([*agent, *once, *twice])
    assert links(made) == [(0, None, None), (1, 0, 1), (2, 0, 2), (3, 2, 2)]
    assert [parts(exp)[2] for exp in made] == [[1, 0, 1], [1], [1, 0, 1], [1]]


def test_parallel_branches_follow_what_trains_the_answer_that_they_share() -> None:
    """Their first words, 9 9, are the same, and still neither goes on from the other."""
    root, one, other = call([1], [2, 3]), call([1, 2, 3, 9, 9], [4]), call([1, 2, 3, 9, 9, 5], [6])
    later = call([1, 2, 3, 9, 8], [7])
    made = trajectories([root, one, other, later])
    assert links(made) == [(0, None, None), (1, 0, 5), (2, 0, 4)]
    assert [parts(exp)[2] for exp in made] == [[1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]


def test_links_are_made_anew_and_change_no_call() -> None:
    calls = [call([1], [2]), call([5], [6]), call([1, 2, 3], [4])]
    first = trajectories(calls[:2])
    assert links(first) == [(0, None, None), (1, 0, 0)] and links(calls) == [(None, None, None)] * 3
    assert links(trajectories([first[0], calls[2]])) == [(None, None, None)], "one alone follows nothing"


def test_calls_that_are_not_joined_follow_the_call_from_which_they_continue() -> None:
    calls = [call([1], [2]), call([1, 2, 3], [4]), call([1, 2, 8], [5])]
    made = trajectories(calls, is_joined=False)
    assert [parts(exp) for exp in made] == [parts(exp) for exp in calls]
    assert links(made) == [(0, None, None), (1, 0, 2), (2, 0, 2)]


def test_what_is_written_to_a_branch_does_not_change_the_others() -> None:
    """Workflows number what they return and add to its facts: branches share the call that they begin with."""
    root, left, right, last = call([1], [2]), call([1, 2, 8], [3]), call([1, 2, 9], [4]), call([1, 2, 7], [5])
    made = finished([root, left, right, last], reward=0.5, metrics={"turns": 4})
    assert [exp.eid.step for exp in made] == [0, 1, 2]
    for number, exp in enumerate(made):
        exp.eid.run, exp.info["own"], exp.metrics["own"] = number, number, float(number)
    assert [(exp.eid.run, exp.info["own"], exp.metrics["own"]) for exp in made] == [
        (0, 0, 0.0),
        (1, 1, 1.0),
        (2, 2, 2.0),
    ]
    assert (root.eid.step, root.eid.run) == (0, 0)


def test_equal_answers_to_one_prompt_are_two() -> None:
    made = trajectories([call([1], [2]), call([1], [2])])
    assert [parts(exp)[:3] for exp in made] == [([1, 2], 1, [1])] * 2


def test_what_is_masked_in_a_call_stays_so_and_versions_are_kept_by_token() -> None:
    first = call([1], [2, 3], action_mask=[1, 0], info={"model_version": 4})
    last = call(
        [1, 2, 3, 9], [5, 6], info={"model_version": 5, "model_versions": [5, 6]}, truncate_status="response_truncated"
    )
    made = joined([first, last])
    assert parts(made)[2] == [1, 0, 0, 1, 1] and made.truncate_status == "response_truncated"
    assert made.info["model_version"] == 4 and made.info["model_versions"] == [4, 4, 4, 5, 6]


def test_a_single_call_is_itself() -> None:
    alone = call([1], [2])
    assert trajectories([alone]) == [alone] and trajectories([]) == []
