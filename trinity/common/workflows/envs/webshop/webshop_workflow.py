"""The workflow of WebShop."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
from collections.abc import Mapping
from typing import Any

from trinity.common.workflows.envs.actions import HINT, parse_action
from trinity.common.workflows.envs.episode import EpisodeWorkflow, Game, Reply, need_package
from trinity.common.workflows.registry import WORKFLOWS

SYSTEM_PROMPT = f"""\
You buy a thing in a web shop that is shown to you as text. The instruction on the page says what is wanted; buy \
what is closest to it within {{steps}} steps. {HINT} An action is search[words], where the page has a search button, \
or click[name], where name stands on the page as [button] name [button_]. Choose the options of a thing before you buy \
it. Examples: <action>search[white shoes]</action>, <action>click[buy now]</action>"""
LOST = -0.1
_servers: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()
_numbers = itertools.count()


class Shopping(Game):
    """One purchase; the reward is how well the thing fits, from 0 to 1.

    Products, goals and search engine need some 15 GB with all products. They are loaded once a process and shared: the
    rollouts differ in the name of their session.

    Args:
        session: number of the goal.
        num_products: products to load, such as 1,000; None: all.
        human_goals: goals written by people, not made from the products.
        is_sparse: 1 for a perfect fit, and 0 for any other purchase.
    """

    def __init__(self, session: int, *, num_products: int | None, human_goals: bool, is_sparse: bool) -> None:
        from web_agent_site.envs import WebAgentTextEnv

        self.session, self.is_sparse, self.reward = session, is_sparse, LOST
        key = (num_products, human_goals)
        with _lock:  # loading takes minutes, and the shop seeds the global generator
            state = random.getstate()
            self.env = WebAgentTextEnv(
                observation_mode="text_rich",
                num_products=num_products,
                human_goals=human_goals,
                server=_servers.get(key),
                session_prefix=f"{os.getpid()}-{next(_numbers)}-",
            )
            _servers[key] = self.env.server
            random.setstate(state)

    def begin(self) -> str:
        """Return the first page of the session."""
        goals = len(self.env.server.goals)
        if not 0 <= self.session < goals:
            raise ValueError(f"session must be from 0 to {goals - 1}, got {self.session}")
        self.env.server.user_sessions.pop(self.env.session, None)  # that of the constructor
        seen, _ = self.env.reset(session=self.session)
        return f"Observation: {seen}"

    def answer(self, text: str) -> Reply:
        """Do the action of a reply, if the page has it."""
        action = parse_action(text)
        wrong = what_is_wrong(action, self.env.get_available_actions())
        if wrong:
            return Reply(f"Observation: {wrong}", is_valid=False)
        with _lock:  # one search engine for all
            seen, reward, is_done, _ = self.env.step(action)
        if is_done:
            self.reward = float(reward) if not self.is_sparse else float(reward >= 0.99)
        return Reply(f"Observation: {seen}", is_done=bool(is_done))

    def metrics(self) -> dict[str, float]:
        """Return the number of the goal, under its published name."""
        return {"session_id": self.session}

    def close(self) -> None:
        """Forget the session; the shop stays for others."""
        self.env.server.user_sessions.pop(self.env.session, None)
        self.env.close()


def what_is_wrong(action: str, page: Mapping[str, Any]) -> str:
    """Return why a page does not take an action; empty where it does."""
    found = re.fullmatch(r"(search|click)\[(.*)\]", action, re.DOTALL)
    if found is None:
        return "There is no search[words] or click[name] between <action> and </action>."
    name, argument = found.group(1), found.group(2).strip().lower()
    if name == "search":
        if not page["has_search_bar"]:
            return "This page has no search; click[back to search] leads to it."
        return "" if argument else "Write the words to search for between the brackets."
    if argument == "search" or argument not in page["clickables"]:
        return f"This page has no button {argument!r}; its buttons: {', '.join(page['clickables'])}."
    return ""


@WORKFLOWS.register_module("webshop_workflow")
class WebShopWorkflow(EpisodeWorkflow):
    """A purchase in WebShop; the prompt column is the number of the goal.

    The reward is that of the shop, and -0.1 where nothing was bought within `max_env_steps`.
    """

    package = "web_agent_site"
    arguments = {"max_env_steps": 15, "num_products": None, "human_goals": True, "sparse_reward": False}
    ranges = {"max_env_steps": "[1, inf]", "num_products": "[1, inf]"}
    needs = frozenset({"prompt"})

    def open(self) -> Game:
        """Return the purchase of the row."""
        need_package(self, self.package)
        given = self.workflow_args
        self.system_prompt = SYSTEM_PROMPT.format(steps=self.max_steps)
        return Shopping(
            int(self.task.task_desc),
            num_products=given.get("num_products"),
            human_goals=bool(given["human_goals"]),
            is_sparse=bool(given["sparse_reward"]),
        )
