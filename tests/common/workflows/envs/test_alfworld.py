"""The workflows of ALFWorld over an environment that speaks TextWorld's protocol."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.common.workflows.envs.policy import Script, attempt, said
from trinity.common.errors import EnvironmentProblem, WorkflowError

PLAN = ["go to cabinet 1", "take mug 1 from cabinet 1", "move mug 1 to desk 1"]
pytestmark = pytest.mark.usefixtures("stand_ins")


@pytest.fixture
def row(tmp_path: Path) -> dict[str, Any]:
    game = tmp_path / "game.tw-pddl"
    game.write_text(
        json.dumps({"intro": "A room. Your task is to: put a mug on the desk.", "plan": PLAN, "breaks": "!"})
    )
    return {"prompt": str(game)}


@pytest.fixture(autouse=True)
def all_closed(stand_ins: None) -> Any:
    yield
    assert importlib.import_module("textworld").OPEN == []


def act(*actions: str) -> Script:
    return Script([f"<think>so</think><action>{action}</action>" for action in actions])


def full(*actions: str) -> Script:
    return Script([f"<experience>e</experience><think>t</think><action>{action}</action>" for action in actions])


def test_a_task_that_is_done(row: dict[str, Any]) -> None:
    model = act(PLAN[0], "fly", *PLAN[1:])
    (made,) = attempt("alfworld_workflow", model, row)
    assert made.reward == 1.0 and made.metrics == {"env_rounds": 4, "env_done": 1, "env_invalid_actions": 1}
    assert said(made) == "".join(f"{text}|" for text in model.answers)
    assert model.asked[0][1]["content"] == "Observation: A room. Your task is to: put a mug on the desk."
    assert model.asked[2][-1]["content"].startswith("Observation: Nothing happens. Is the action one")


def test_a_task_that_is_not_done(row: dict[str, Any]) -> None:
    model = Script(["look", "<action>look</action>", "<action>look</action>"])
    (made,) = attempt("alfworld_workflow", model, row, max_env_steps=3)
    assert (made.reward, made.metrics["env_done"], made.metrics["env_invalid_actions"]) == (-0.1, 0, 1)
    assert "There is no action" in model.asked[1][-1]["content"]
    (made,) = attempt("alfworld_workflow", Script(["<action>look"], cut=0), row)
    assert (made.reward, made.truncate_status) == (-0.1, "response_truncated")


@pytest.mark.difference("An environment that fails")
@pytest.mark.parametrize(
    "name",
    ["alfworld_workflow", "step_wise_alfworld_workflow", "RAFT_alfworld_workflow", "RAFT_reflect_alfworld_workflow"],
)
def test_an_environment_that_breaks_is_closed_and_a_failure(row: dict[str, Any], name: str) -> None:
    with pytest.raises(WorkflowError, match="E5132.*AssertionError: the simulator has a fault"):
        attempt(name, full("look", "!"), row)
    with pytest.raises(WorkflowError, match="E5132.*there is no game file"):
        attempt(name, full(), {"prompt": "none"})


def test_steps_are_experiences_for_gigpo(row: dict[str, Any]) -> None:
    made = attempt("step_wise_alfworld_workflow", act("look", "look", *PLAN), row)
    assert [one.eid.step for one in made] == list(range(5)) and {one.reward for one in made} == {1.0}
    assert [one.info["step_reward"] for one in made] == [0, 0, 0, 0, 1]
    hashes = [one.info["env_state_hash"] for one in made]
    assert hashes[1] == hashes[2] != hashes[0] and len(set(hashes)) == 3 and len(hashes[0]) == 64
    assert {(one.metrics["actual_env_steps"], one.metrics["env_done"]) for one in made} == {(5.0, 1.0)}
    made = attempt("step_wise_alfworld_workflow", act("look", "look"), row, max_env_steps=2)
    assert [one.reward for one in made] == [-0.1, -0.1]
    made = attempt("step_wise_alfworld_workflow", Script(["<action>l"], cut=0), row)
    assert [(one.reward, one.metrics["env_done"]) for one in made] == [(-0.1, 0.0)]


def test_a_success_is_learned(row: dict[str, Any]) -> None:
    for name in ("RAFT_alfworld_workflow", "RAFT_reflect_alfworld_workflow"):
        model = full(*PLAN)
        (made,) = attempt(name, model, row)
        assert said(made) == "".join(f"{text}|" for text in model.answers)
        assert made.reward == 1.0 and made.metrics == {"success": 1.0, "reward": 1.0, "steps": 3.0}


@pytest.mark.difference("RAFT on ALFWorld: rollouts that failed")
def test_what_failed_counts_and_is_not_learned(row: dict[str, Any]) -> None:
    (made,) = attempt("RAFT_alfworld_workflow", full("look", "look", "look"), row)  # ends with the third
    assert (said(made), made.reward) == ("", 0.0)
    assert made.metrics == {"success": 0.0, "reward": 0.0, "steps": 3.0}
    three = [f"<experience>e</experience><think>t</think><action>{action}</action>" for action in PLAN]
    without_form = Script([three[0], "<action>look</action>", *three[1:]])
    (made,) = attempt("RAFT_alfworld_workflow", without_form, row)
    assert (said(made), made.reward, made.metrics["success"]) == ("", 1.0, 1.0)


def test_a_second_attempt_is_learned_without_the_first(row: dict[str, Any]) -> None:
    model = full("look", "look", "look", *PLAN)
    (made,) = attempt("RAFT_reflect_alfworld_workflow", model, row)
    assert said(made) == "".join(f"{text}|" for text in model.answers[3:])
    assert made.reward == 1.0 and made.metrics == {
        "success": 0.0, "reward": 0.0, "steps": 3.0, "second_reward": 1.0, "second_steps": 3.0, "improvement": 1.0,
        "trajectory_length": 3.0,
    }  # fmt: skip
    again = model.asked[3]
    assert "3 steps with a reward of 0" in again[-2]["content"] and again[-1]["content"].startswith(
        "Observation: A room"
    )
    assert len(again) == 1 + 6 + 2  # the first conversation, and the new start


def test_a_second_attempt_that_is_no_better_is_not_learned(row: dict[str, Any]) -> None:
    (made,) = attempt("RAFT_reflect_alfworld_workflow", full(*["look"] * 6), row, max_env_steps=3)
    assert said(made) == "" and made.metrics["improvement"] == 0.0
    cut = Script(full(*["look"] * 4).policy, cut=3)
    (made,) = attempt("RAFT_reflect_alfworld_workflow", cut, row, max_env_steps=3)
    assert said(made) == "" and made.metrics["second_steps"] == 0


def test_a_missing_package_is_named(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alfworld", None)
    with pytest.raises(EnvironmentProblem, match=r"E3301.*package alfworld.*trinity-rft\[alfworld\]"):
        attempt("alfworld_workflow", act(), row)
