"""ScienceWorld's workflow over an environment that speaks its protocol, and over the package where it is installed."""

from __future__ import annotations

import importlib
import json
import shutil
from typing import Any

import pytest

from tests.common.workflows.envs.policy import Script, attempt
from trinity.common.errors import EnvironmentProblem, WorkflowError
from trinity.utils.packages import is_installed

HAS_PACKAGE = is_installed("scienceworld") and shutil.which("java") is not None


def act(*actions: str) -> Script:
    return Script([f"<think>so</think><action>{action}</action>" for action in actions])


def task(**fields: Any) -> dict[str, Any]:
    return {"prompt": json.dumps({"task_name": "boil", "var_num": 2, "jar_path": "x.jar"} | fields)}


@pytest.mark.parametrize(
    ("actions", "steps", "reward", "is_done"),
    [
        (["focus on water", "activate stove", "wait"], 30, 1.0, 1),
        (["focus on water", "activate stove"], 2, 0.5, 0),
        (["focus on water", "focus on air"], 30, 0.33, 1),  # the score falls to -67; the highest counts
        (["fly", "look around"], 2, 0.0, 0),
    ],
)
def test_the_highest_score_is_the_reward(
    stand_ins: None, actions: list[str], steps: int, reward: float, is_done: int
) -> None:
    model = act(*actions)
    (made,) = attempt("sciworld_workflow", model, task(), max_env_steps=steps)
    assert made.reward == pytest.approx(reward)
    invalid = 2 * ("fly" in actions)
    assert made.metrics == {
        "env_rounds": len(actions), "env_done": is_done, "env_invalid_actions": invalid, "golden_rounds": 3
    }  # fmt: skip
    assert model.asked[0][1]["content"] == (
        "Task: Your task is to boil water 2.\nObservation: This room is the kitchen."
    )
    assert importlib.import_module("scienceworld").OPEN == []


def test_cut_and_missing_actions(stand_ins: None) -> None:
    model = Script(["wait", "<action>focus on water</action>", "<action>wa"], cut=2)
    (made,) = attempt("sciworld_workflow", model, task())
    assert (made.reward, made.truncate_status, made.metrics["env_invalid_actions"]) == (0.33, "response_truncated", 1)


@pytest.mark.difference("An environment that fails")
@pytest.mark.parametrize(
    ("row", "says"),
    [
        (task(task_name="fly"), "Unknown task name: fly"),
        ({"prompt": "boil"}, "the prompt must be JSON"),
        ({}, "must be JSON"),
    ],
)
def test_a_task_that_cannot_be_is_a_failure(stand_ins: None, row: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkflowError, match=f"E5132.*{says}"):
        attempt("sciworld_workflow", act(), row)
    assert importlib.import_module("scienceworld").OPEN == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scienceworld", None)
    with pytest.raises(EnvironmentProblem, match=r"E3301.*package scienceworld.*trinity-rft\[scienceworld\]"):
        attempt("sciworld_workflow", act(), task())


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PACKAGE, reason="scienceworld or Java is not installed")
def test_the_package_itself() -> None:
    model = act("open door to kitchen", "teleport to kitchen", "no such action")
    row = {"prompt": json.dumps({"task_name": "find-living-thing", "var_num": 0})}
    (made,) = attempt("sciworld_workflow", model, row, max_env_steps=3)
    assert 0 < made.reward < 1 and made.metrics["env_invalid_actions"] == 1 and made.metrics["golden_rounds"] > 3
    assert "find a(n) living thing" in model.asked[0][1]["content"]
