"""Workflows of several steps, over a real engine: numbering, rewards, ends, and calls that are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import make
from trinity.algorithm import ADVANTAGE_FN
from trinity.common.errors import EngineError, WorkflowError
from trinity.common.experience import Experience
from trinity.common.workflows import Task
from trinity.common.workflows.step_wise_workflow import (
    AsyncRewardPropagationWorkflow,
    AsyncStepWiseRewardWorkflow,
    RewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)
from trinity.explorer.outcome import Failed

STOPS = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-*/=#,.:;?<>[]() \n")
ASK = {"n": 1, "temperature": 1.0, "stop": STOPS}  # one token, which ends the answer: nothing is cut


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Rollouts:
    return Rollouts(tmp_path_factory.mktemp("step_wise"))


class Sync(StepWiseRewardWorkflow):
    """Each step has as many calls as the row says; it ends before a step without any."""

    max_step_num = 4

    def __init__(self, *, task: Task, model: Any, auxiliary_models: Any = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.calls: list[int] = (task.raw_task or {})["calls"]
        self.max_tokens: int | None = (task.raw_task or {}).get("max_tokens")

    def step(self, step_num: int) -> bool:
        for _ in range(self.calls[step_num]):
            self.model.chat([{"role": "user", "content": f"{step_num}+1="}], **self.arguments)
        return step_num + 1 < len(self.calls)

    @property
    def arguments(self) -> dict[str, Any]:
        return ASK if self.max_tokens is None else {"n": 1, "temperature": 1.0, "max_tokens": self.max_tokens}

    def reward(self, exps: Sequence[Experience], step_num: int) -> float:
        return 10.0 * step_num + len(exps)


class Async(AsyncStepWiseRewardWorkflow):
    """`Sync` on the event loop."""

    max_step_num = 4

    async def step_async(self, step_num: int) -> bool:
        calls = (self.task.raw_task or {})["calls"]
        for _ in range(calls[step_num]):
            await self.model.chat_async([{"role": "user", "content": f"{step_num}+1="}], **ASK)
        return step_num + 1 < len(calls)

    async def reward_async(self, exps: Sequence[Experience], step_num: int) -> float:
        return 10.0 * step_num + len(exps)


class Propagated(RewardPropagationWorkflow):
    """One reward for all steps: the number of calls."""

    max_step_num = 2

    def step(self, step_num: int) -> bool:
        self.model.chat([{"role": "user", "content": f"{step_num}+1="}], **ASK)
        return True

    def reward(self, exps: Sequence[Experience]) -> float:
        return 5.0 + len(exps)


class AsyncPropagated(AsyncRewardPropagationWorkflow):
    """`Propagated` on the event loop."""

    max_step_num = 2

    async def step_async(self, step_num: int) -> bool:
        await self.model.chat_async([{"role": "user", "content": f"{step_num}+1="}], **ASK)
        return True

    async def reward_async(self, exps: Sequence[Experience]) -> float:
        return 5.0 + len(exps)


def _ids(experiences: Sequence[Experience]) -> list[str]:
    return [f"{e.eid.run}/{e.eid.step}/{e.eid.suffix}" for e in experiences]


@pytest.mark.difference("Step-wise workflows", "Step rewards of `gigpo`")
@pytest.mark.parametrize("workflow", [Sync, Async])
def test_every_step_has_its_own_reward_and_its_calls_are_told_apart(rollouts: Rollouts, workflow: Any) -> None:
    result = rollouts.run([make(workflow, 2, calls=[1, 2, 0, 1])])
    first = result.experiences[:4]
    assert _ids(first) == ["0/0/", "0/1/000", "0/1/001", "0/3/"] and len(result.experiences) == 8, result.reasons()
    assert [e.reward for e in first] == [1.0, 12.0, 12.0, 31.0]
    assert [e.info.get("step_reward") for e in first] == [1.0, None, 12.0, 31.0]
    _, metrics = ADVANTAGE_FN.get("gigpo")().process(result.experiences)
    assert metrics["group_advantages/reward_mean/mean"] == 1.0 + 12.0 + 31.0, "the steps' rewards, each once"


@pytest.mark.parametrize("workflow", [Propagated, AsyncPropagated])
def test_the_reward_of_the_rollout_stands_on_every_step(rollouts: Rollouts, workflow: Any) -> None:
    result = rollouts.run([make(workflow, 2)], is_deterministic=True)
    assert [e.eid.uid for e in result.experiences] == ["1/0/0/0/", "1/0/0/1/", "1/0/1/0/", "1/0/1/1/"]
    assert [e.reward for e in result.experiences] == [7.0] * 4, result.reasons()
    assert all(e.metrics["actual_env_steps"] == 2.0 for e in result.experiences)


def test_a_response_that_was_cut_ends_the_rollout(rollouts: Rollouts) -> None:
    result = rollouts.run([make(Sync, 1, calls=[1, 1, 1], max_tokens=1)])
    assert [e.truncate_status for e in result.experiences] == ["response_truncated"]


def test_a_rollout_that_a_runner_does_next_starts_with_an_empty_history(rollouts: Rollouts) -> None:
    class Again(Sync):
        can_reset = True

        def reset(self, task: Task) -> None:
            self.calls = (task.raw_task or {})["calls"]

    result = rollouts.run([make(Again, 2, calls=[1, 1]), make(Again, 1, calls=[2])], num_runners=1)
    assert _ids(result.experiences) == ["0/0/", "0/1/", "1/0/", "1/1/", "0/0/000", "0/0/001"], result.reasons()


@pytest.mark.parametrize(
    ("base", "missing"),
    [(StepWiseRewardWorkflow, "max_step_num"), (AsyncRewardPropagationWorkflow, "max_step_num")],
)
def test_what_a_subclass_has_to_define_is_named(rollouts: Rollouts, base: type[Any], missing: str) -> None:
    result = rollouts.run([make(type("Bare", (base,), {}), 1)], max_retry_times=0)
    assert result.count(Failed) == 1 and f"Bare must define {missing}" in result.reasons()[0]


@pytest.mark.parametrize(
    ("base", "missing"),
    [
        (StepWiseRewardWorkflow, "step(step_num)"), (AsyncStepWiseRewardWorkflow, "step_async(step_num)"),
        (RewardPropagationWorkflow, "step(step_num)"), (AsyncRewardPropagationWorkflow, "step_async(step_num)"),
    ],
)  # fmt: skip
def test_steps_have_to_be_defined(rollouts: Rollouts, base: type[Any], missing: str) -> None:
    result = rollouts.run([make(type("Bare", (base,), {"max_step_num": 1}), 1)], max_retry_times=0)
    assert f"Bare must define {missing}" in result.reasons()[0]


def test_a_reward_has_to_be_defined(rollouts: Rollouts) -> None:
    async def step_async(self: Any, step_num: int) -> bool:
        return False

    parts = {"max_step_num": 1, "step": lambda self, step_num: False, "step_async": step_async}
    names = {
        StepWiseRewardWorkflow: "reward(exps, step_num)", AsyncStepWiseRewardWorkflow: "reward_async(exps, step_num)",
        RewardPropagationWorkflow: "reward(exps)", AsyncRewardPropagationWorkflow: "reward_async(exps)",
    }  # fmt: skip
    tasks = [make(type("Bare", (base,), parts), 1) for base in names]
    reasons = rollouts.run(tasks, max_retry_times=0).reasons()
    assert all(any(f"Bare must define {name} (" in reason for reason in reasons) for name in names.values())


def test_the_openai_client_is_refused_only_where_it_is_used(rollouts: Rollouts) -> None:
    class Client(Sync):
        def step(self, step_num: int) -> bool:
            self.client.chat.completions.create(messages=[])
            return False

    result = rollouts.run([make(Client, 1, calls=[0])], max_retry_times=0)
    assert "set explorer.rollout_model.enable_openai_api: true" in result.reasons()[0]
    assert EngineError.__name__ in result.reasons()[0] and WorkflowError.__name__ not in result.reasons()[0]
    workflow = StepWiseRewardWorkflow(task=make(Sync, 1, calls=[]), model=None, use_openai_client=False)  # type: ignore[arg-type]
    assert workflow.client is None
