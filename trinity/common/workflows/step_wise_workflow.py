"""Bases of workflows whose rollout has several steps.

Each step has the experiences of the model calls that the model's wrapper recorded while the step ran. A rollout ends
after `max_step_num` steps, when a step returns that it is done, or when a response reached its length limit.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trinity.common.errors import WorkflowError
from trinity.common.experience import Experience
from trinity.common.workflows.workflow import Workflow

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper
    from trinity.common.workflows.task import Task

STEP_REWARD_KEY = "step_reward"


class StepWorkflow(Workflow):
    """The common base: steps, their experiences and the end of a rollout.

    Args:
        task: what to attempt.
        model: the model under training; its calls are recorded whatever `enable_history` says.
        auxiliary_models: further models, such as judges.
        use_openai_client: published workflows say whether they use `self.client`; it is made when it is first read.
    """

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: list[Any] | None = None,
        use_openai_client: bool = True,
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.use_openai_client = use_openai_client

    @property
    def client(self) -> Any:
        """An OpenAI client of the model; None with `use_openai_client=False`.

        Raises:
            EngineError: `explorer.rollout_model.enable_openai_api` is false (E5612).
        """
        return self.model.get_openai_client() if self.use_openai_client else None

    @property
    def max_step_num(self) -> int:
        """Most steps of a rollout; a subclass defines it.

        Raises:
            WorkflowError: it does not.
        """
        raise WorkflowError(f"{type(self).__name__} must define max_step_num")

    def _begin(self) -> None:
        self.model.enable_history = True

    def _take(self, step_num: int) -> list[Experience]:
        """Return the experiences of the calls since the last step.

        They are numbered as step `step_num`.
        """
        exps = self.model.extract_experience_from_history()
        for number, exp in enumerate(exps):
            exp.eid.step = step_num
            exp.eid.suffix = f"{number:03d}" if len(exps) > 1 else ""
        return exps


class _Synchronous(StepWorkflow):
    """A step and its end, for workflows that run in a thread."""

    def step(self, step_num: int) -> bool:
        """Do one step with the model; return whether the rollout continues.

        Raises:
            WorkflowError: the subclass does not define it.
        """
        raise WorkflowError(f"{type(self).__name__} must define step(step_num)")


class _Asynchronous(StepWorkflow):
    """A step and its end, for workflows on the event loop."""

    is_async = True

    async def step_async(self, step_num: int) -> bool:
        """Do one step with the model; return whether the rollout continues.

        Raises:
            WorkflowError: the subclass does not define it.
        """
        raise WorkflowError(f"{type(self).__name__} must define step_async(step_num)")


class StepWiseRewardWorkflow(_Synchronous):
    """Sets a reward per step on all experiences of the step.

    Its last experience also has it as `info["step_reward"]`, which `gigpo` reads.
    """

    def reward(self, exps: list[Experience], step_num: int) -> float:
        """Return the reward of a step with these experiences.

        Raises:
            WorkflowError: the subclass does not define it.
        """
        raise WorkflowError(f"{type(self).__name__} must define reward(exps, step_num)")

    def run(self) -> list[Experience]:
        """Return the experiences of all steps, in order."""
        self._begin()
        experiences: list[Experience] = []
        for step_num in range(self.max_step_num):
            goes_on = self.step(step_num=step_num)
            exps = self._take(step_num)
            _set_step_reward(exps, self.reward(exps, step_num=step_num))
            experiences += exps
            if not goes_on or _is_cut(exps):
                break
        return experiences


class AsyncStepWiseRewardWorkflow(_Asynchronous):
    """`StepWiseRewardWorkflow` on the event loop."""

    async def reward_async(self, exps: list[Experience], step_num: int) -> float:
        """Return the reward of a step with these experiences.

        Raises:
            WorkflowError: the subclass does not define it.
        """
        raise WorkflowError(f"{type(self).__name__} must define reward_async(exps, step_num)")

    async def run_async(self) -> list[Experience]:
        """Return the experiences of all steps, in order."""
        self._begin()
        experiences: list[Experience] = []
        for step_num in range(self.max_step_num):
            goes_on = await self.step_async(step_num=step_num)
            exps = self._take(step_num)
            _set_step_reward(exps, await self.reward_async(exps, step_num=step_num))
            experiences += exps
            if not goes_on or _is_cut(exps):
                break
        return experiences


class RewardPropagationWorkflow(_Synchronous):
    """Sets the reward of the whole rollout on all of its experiences.

    `actual_env_steps` is its number of steps.
    """

    def reward(self, exps: list[Experience]) -> float:
        """Return the reward of the rollout with these experiences.

        Raises:
            WorkflowError: the subclass does not define it.
        """
        raise WorkflowError(f"{type(self).__name__} must define reward(exps)")

    def run(self) -> list[Experience]:
        """Return the experiences of all steps, in order."""
        self._begin()
        experiences: list[Experience] = []
        num_steps = 0
        for step_num in range(self.max_step_num):
            goes_on = self.step(step_num=step_num)
            exps = self._take(step_num)
            experiences += exps
            num_steps += 1
            if not goes_on or _is_cut(exps):
                break
        return _with_reward(experiences, self.reward(experiences), num_steps)


class AsyncRewardPropagationWorkflow(_Asynchronous):
    """`RewardPropagationWorkflow` on the event loop."""

    async def reward_async(self, exps: list[Experience]) -> float:
        """Return the reward of the rollout with these experiences.

        Raises:
            WorkflowError: the subclass does not define it.
        """
        raise WorkflowError(f"{type(self).__name__} must define reward_async(exps)")

    async def run_async(self) -> list[Experience]:
        """Return the experiences of all steps, in order."""
        self._begin()
        experiences: list[Experience] = []
        num_steps = 0
        for step_num in range(self.max_step_num):
            goes_on = await self.step_async(step_num=step_num)
            exps = self._take(step_num)
            experiences += exps
            num_steps += 1
            if not goes_on or _is_cut(exps):
                break
        return _with_reward(experiences, await self.reward_async(experiences), num_steps)


def _is_cut(exps: Sequence[Experience]) -> bool:
    """Return whether a response reached its length limit.

    Its remaining text is missing.
    """
    return any(exp.truncate_status == "response_truncated" for exp in exps)


def _set_step_reward(exps: Sequence[Experience], reward: float) -> None:
    for exp in exps:
        exp.reward = reward
    if exps and isinstance(reward, numbers.Real):  # anything else is rejected with its run
        exps[-1].info.setdefault(STEP_REWARD_KEY, float(reward))


def _with_reward(exps: list[Experience], reward: float, num_steps: int) -> list[Experience]:
    for exp in exps:
        exp.reward = reward
        exp.metrics["actual_env_steps"] = float(num_steps)
    return exps
