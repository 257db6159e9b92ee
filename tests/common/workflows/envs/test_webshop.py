"""WebShop's workflow over a shop that speaks its protocol."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

import pytest

from tests.common.workflows.envs.policy import Script, attempt
from trinity.common.errors import EnvironmentProblem, WorkflowError
from trinity.common.workflows.envs.webshop import webshop_workflow

BUY = ["search[white shoes]", "click[B1]", "click[red]", "click[Buy Now]"]


def act(*actions: str) -> Script:
    return Script([f"<think>so</think><action>{action}</action>" for action in actions])


@pytest.fixture
def shop(stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(webshop_workflow, "_servers", {})
    return importlib.import_module("web_agent_site.envs")


@pytest.mark.parametrize(
    ("sparse", "thing", "reward"), [(False, "B1", 1.0), (False, "B2", 0.4), (True, "B1", 1.0), (True, "B2", 0.0)]
)
def test_a_purchase(shop: Any, sparse: bool, thing: str, reward: float) -> None:
    model = act(*[action.replace("B1", thing) for action in BUY])
    (made,) = attempt("webshop_workflow", model, {"prompt": "0"}, sparse_reward=sparse)
    assert made.reward == reward
    assert made.metrics == {"env_rounds": 4, "env_done": 1, "env_invalid_actions": 0, "session_id": 0}
    assert "within 15 steps" in model.asked[0][0]["content"]
    assert model.asked[0][1]["content"].startswith("Observation: start\nInstruction: white shoes\n[button] search")


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("buy it", "There is no search[words] or click[name]"),
        ("click[buy now]", "This page has no button 'buy now'; its buttons: search."),
        ("click[search]", "This page has no button 'search'"),
        ("search[ ]", "Write the words to search for"),
    ],
)
def test_an_action_that_the_page_does_not_take(shop: Any, action: str, says: str) -> None:
    model = act(action, BUY[0], "search[again]")
    (made,) = attempt("webshop_workflow", model, {"prompt": 1}, max_env_steps=3)
    assert (made.reward, made.metrics["env_invalid_actions"], made.metrics["env_done"]) == (-0.1, 2, 0)
    assert model.asked[1][-1]["content"].startswith(f"Observation: {says}")
    (made,) = attempt("webshop_workflow", Script(["<action>search[shoes"], cut=0), {"prompt": 1})
    assert (made.reward, made.truncate_status) == (-0.1, "response_truncated")


@pytest.mark.difference("WebShop's products")
def test_products_are_loaded_once_and_attempts_have_sessions_of_their_own(shop: Any) -> None:
    random.seed(1)
    before = random.getstate()
    for _ in range(2):  # the second attempt at a goal finds it again, not bought
        (made,) = attempt("webshop_workflow", act(*BUY), {"prompt": "0"}, num_products=1000)
        assert made.reward == 1.0
    attempt("webshop_workflow", act(*BUY), {"prompt": "0"})
    assert [(server.num_products, server.human_goals) for server in shop.SERVERS] == [(1000, True), (None, True)]
    assert all(server.user_sessions == {} for server in shop.SERVERS)
    assert random.getstate() == before


@pytest.mark.difference("An environment that fails")
def test_a_goal_that_is_not_there_is_a_failure(shop: Any) -> None:
    with pytest.raises(WorkflowError, match="E5132.*session must be from 0 to 1, got 2"):
        attempt("webshop_workflow", act(), {"prompt": "2"})
    assert all(server.user_sessions == {} for server in shop.SERVERS)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "web_agent_site", None)
    with pytest.raises(EnvironmentProblem, match="E3301.*package web_agent_site.*princeton-nlp/WebShop"):
        attempt("webshop_workflow", act(), {"prompt": "0"})
