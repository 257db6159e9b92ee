"""The frozen lake, walked over by a scripted policy."""

from __future__ import annotations

import re

import pytest
import torch

from tests.common.workflows.envs.policy import Script, attempt, said
from trinity.common.errors import WorkflowError
from trinity.common.workflows.envs.frozen_lake.utils import fewest_moves, generate_random_map, render

MAP = ["SFF", "FHF", "FFG"]


def test_the_goal_gives_one_and_the_experience_has_what_was_sampled() -> None:
    model = Script([f"so ```{move}```" for move in ("Right", "right", "3", "Down", "\ndown\n")])
    (made,) = attempt("frozen_lake_workflow", model, desc=MAP)
    assert made.reward == 1.0 and made.truncate_status is None
    assert said(made) == "so ```Right```|so ```right```|so ```3```|so ```Down```|so ```\ndown\n```|"
    assert made.metrics == {
        "env_rounds": 5, "env_done": 1, "env_invalid_actions": 0, "env_steps": 5, "test_score": 1.0
    }  # fmt: skip
    assert made.info["env_steps"] == 5 and made.info["model_version"] == 1  # the oldest weights
    assert made.logprobs is not None and made.action_mask is not None
    assert torch.all(made.logprobs[~made.action_mask] == 0)
    assert made.logprobs[made.action_mask].unique().tolist() == [-1.25, -1.0, -0.75, -0.5, -0.25]
    first, last = model.asked[0], model.asked[-1]
    assert [message["role"] for message in first] == ["system", "user"] and len(last) == 10
    assert first[1]["content"] == "Map after 0 moves, 10 left:\nP _ _\n_ O _\n_ _ G\nYour next move?"
    assert model.asked[3][-1]["content"].startswith("You did not get anywhere. Map after 3 moves, 7 left:\n_ _ P")
    assert model.arguments[0] == {"temperature": 0.7, "n": 1}


def test_a_hole_ends_the_walk_without_a_reward() -> None:
    (made,) = attempt("frozen_lake_workflow", Script(["```Down```", "```Right```"]), desc=MAP)
    assert (made.reward, made.metrics["env_done"], made.metrics["env_steps"]) == (0.0, 1, 2)


def test_what_is_no_move_is_told_and_takes_a_step() -> None:
    model = Script(["Down", "```fly```", "```Down```"])
    (made,) = attempt("frozen_lake_workflow", model, desc=MAP, agent_max_steps=3)
    assert (made.reward, made.metrics["env_invalid_actions"], made.metrics["env_done"]) == (0.0, 2, 0)
    assert model.asked[1][-1]["content"].startswith("Your reply has no move between triple backticks. Map after 1")


def test_a_cut_answer_ends_the_walk() -> None:
    (made,) = attempt("frozen_lake_workflow", Script(["```Down```", "```Do"], cut=1), desc=MAP)
    assert (made.reward, made.truncate_status, made.metrics["env_rounds"]) == (0.0, "response_truncated", 2)
    assert said(made) == "```Down```|```Do"


@pytest.mark.difference("Length of an episode")
def test_a_conversation_that_no_longer_fits_ends_and_is_trained_on() -> None:
    model = Script(lambda _: "```Down```", max_model_len=900)
    (made,) = attempt("frozen_lake_workflow", model, desc=["SF", "FG"], agent_max_steps=500)
    assert len(made.tokens) <= 900 and made.metrics["env_rounds"] == len(model.asked) < 10
    assert made.truncate_status is None and said(made) == "```Down```|" * len(model.asked)


@pytest.mark.difference("Tokens of an episode")
def test_a_template_that_rewrites_earlier_turns_gives_an_experience_a_turn() -> None:
    model = Script(["```Down```", "```Down```", "```Right```", "```Right```"], rewrites=True)
    made = attempt("frozen_lake_workflow", model, desc=MAP)
    assert [said(one) for one in made] == [f"{text}|" for text in model.answers]
    assert [one.eid.step for one in made] == [0, 1, 2, 3]
    assert {one.reward for one in made} == {1.0}


def test_a_map_is_drawn_from_the_seed_and_has_a_short_way() -> None:
    maps = [generate_random_map(6, 0.7, seed, 5)[0] for seed in (*range(20), *range(20))]
    assert maps[:20] == maps[20:] and len({tuple(rows) for rows in maps}) == 20
    assert all(1 <= (fewest_moves(rows) or 99) <= 5 for rows in maps)
    assert fewest_moves(["SH", "HG"]) is None
    assert render(MAP, (1, 1)) == "_ _ _\n_ X _\n_ _ G" and render(MAP, (2, 2)).endswith("√")


def test_slips_follow_the_seed() -> None:
    def walk(seed: int) -> list[str]:
        model = Script(lambda _: "```Down```")
        attempt(
            "frozen_lake_workflow",
            model,
            {"seed": seed},
            desc=["SFFF"] * 1 + ["FFFF", "FFFF", "FFFG"],
            is_slippery=True,
        )
        return re.findall(r"(?s)left:(.*?)Your", str(model.asked[-1]))

    assert walk(3) == walk(3)
    assert len({tuple(walk(seed)) for seed in range(4)}) > 1


@pytest.mark.difference("An environment that fails")
@pytest.mark.parametrize(
    ("row", "args", "says"),
    [
        ({"size": 1}, {}, "size >= 2"),
        ({"size": 4, "p": 0.0}, {"env_max_steps": 1, "desc": ["SF", "FX"]}, "rows of S, F, H and G"),
        ({}, {"desc": ["SS", "FG"]}, "one start S and a goal G"),
    ],
)
def test_a_lake_that_cannot_be_is_a_failure_and_no_reward(row: dict, args: dict, says: str) -> None:
    with pytest.raises(WorkflowError, match=f"E5132.*FrozenLakeWorkflow failed: ValueError.*{says}"):
        attempt("frozen_lake_workflow", Script([]), row, **args)
