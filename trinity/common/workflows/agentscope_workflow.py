"""Functions for AgentScope's tuner run as published.

Their calls go to the endpoint of the rollout, so that the tokens that were sampled are those that are trained.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trinity.common.errors import WorkflowError
from trinity.common.models.trajectories import trajectories
from trinity.common.workflows.envs.episode import need_package
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.workflow import Task, Workflow

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.common.models.model import ModelWrapper

SAMPLING = ("temperature", "top_p", "max_tokens")


def function_of(value: Any, *, key: str) -> Callable[..., Any]:
    """Return a function that is given as it is or as `module:name`.

    Raises:
        WorkflowError: it is neither, or there is none of that name.
    """
    if callable(value):
        return value
    module, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not module or not name:
        raise WorkflowError(
            f"workflow_args.{key} must be an async function or its text 'module:name', got {value!r}; "
            f"set workflow_args.{key} of the taskset"
        )
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found):
        raise WorkflowError(f"workflow_args.{key}: module {module} has no function {name}; name one that it has")
    return found


class AgentScopeWorkflow(Workflow):
    """Base of the workflows of agents that are written with AgentScope.

    Every call of the model is one experience, and all have the reward of the rollout.
    """

    package = "agentscope"
    is_async = True

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: list[Any] | None = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        need_package(self, self.package)
        self.model.enable_history = True
        sampling = self.rollout_args
        self.generate_kwargs = {name: sampling[name] for name in SAMPLING if name in sampling}

    def chat_model(self, client: Any, **sampling: Any) -> Any:
        """Return an `OpenAIChatModel` of a client of the endpoint."""
        from agentscope.model import OpenAIChatModel

        made = OpenAIChatModel(client.model_path, api_key=client.api_key, stream=False, generate_kwargs=sampling)
        made.client = client
        return made

    def rewarded(self, reward: float, metrics: dict[str, float]) -> list[Experience]:
        """Return the calls of the rollout in order, with their reward.

        The metrics are on the last one.
        """
        from trinity.common.experience import EID

        experiences = trajectories(self.model.extract_experience_from_history(), is_joined=False)
        for step, experience in enumerate(experiences):
            experience.reward = reward
            experience.eid = replace(experience.eid or EID(), step=step)
        if experiences:
            experiences[-1].metrics = {**(experiences[-1].metrics or {}), **metrics}
        return experiences


class FunctionWorkflow(AgentScopeWorkflow):
    """Base of the adapters: one rollout is one call of the user's function."""

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: list[Any] | None = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        args = task.workflow_args or {}
        self.workflow_func = function_of(args.get("workflow_func"), key="workflow_func")
        judge = args.get("judge_func")
        self.judge_func = None if judge is None else function_of(judge, key="judge_func")


@WORKFLOWS.register_module("agentscope_workflow_adapter")
class AgentScopeWorkflowAdapter(FunctionWorkflow):
    """An agent whose function returns its reward.

    `workflow_args.workflow_func` is an async function of the row and AgentScope's `TrinityChatModel`.
    """

    arguments = {"workflow_func": None}

    async def run_async(self) -> list[Experience]:
        """Return the experiences of one call of the function.

        Raises:
            WorkflowError: it returned no number.
        """
        from agentscope.model import TrinityChatModel

        client = self.model.get_openai_async_client()
        with warnings.catch_warnings():  # its newer versions deprecate the class, which the function may ask for
            warnings.simplefilter("ignore", DeprecationWarning)
            chat_model = TrinityChatModel(client, generate_kwargs=self.generate_kwargs)
        reward = await self.workflow_func(self.task.raw_task, chat_model)
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise WorkflowError(
                f"workflow_func must return its reward, a number, got {type(reward).__name__}; for a WorkflowOutput "
                "take agentscope_workflow_adapter_v1"
            )
        return self.rewarded(float(reward), {})


@WORKFLOWS.register_module("agentscope_workflow_adapter_v1")
class AgentScopeWorkflowAdapterV1(FunctionWorkflow):
    """An agent whose function returns a `WorkflowOutput`.

    `workflow_args.workflow_func` is an async function of `task` (the row) and `model` (an `OpenAIChatModel`), and, if
    it names them, of `auxiliary_models` and `logger`. The auxiliary models are found by name, without one by path, and
    by their number where an earlier one has the same. The reward is that of the function's output, or of
    `workflow_args.judge_func`, an async function of `task` and `response`, which returns a `JudgeOutput`.
    """

    arguments = {"workflow_func": None, "judge_func": None}

    def _offered(self) -> dict[str, Any]:
        models: dict[str | int, Any] = {}
        for number, wrapper in enumerate(self.auxiliary_model_wrappers):
            key = number if wrapper.model_name in models else wrapper.model_name
            models[key] = self.chat_model(wrapper.get_openai_async_client())
        return {"auxiliary_models": models, "logger": self.logger}

    async def run_async(self) -> list[Experience]:
        """Return the experiences of one call of the function.

        Raises:
            WorkflowError: function or judge returned something else, or neither gave a reward.
        """
        from agentscope.tuner import JudgeOutput, WorkflowOutput

        chat_model = self.chat_model(self.model.get_openai_async_client(), **self.generate_kwargs)
        offered, task = self._offered(), self.task.raw_task
        output = await _asked(self.workflow_func, WorkflowOutput, offered, task=task, model=chat_model)
        reward, metrics = output.reward, dict(output.metrics or {})
        if self.judge_func is not None:
            judged = await _asked(self.judge_func, JudgeOutput, offered, task=task, response=output.response)
            reward, metrics = judged.reward, metrics | (judged.metrics or {})
        if reward is None:
            raise WorkflowError(
                "the WorkflowOutput of workflow_func has no reward and there is no judge_func; give one of the two"
            )
        return self.rewarded(float(reward), metrics)


async def _asked(function: Callable[..., Any], kind: type[Any], offered: dict[str, Any], **given: Any) -> Any:
    """Call a user's function with what it names of `offered`, too."""
    parameters = inspect.signature(function).parameters
    returned = await function(**given, **{name: value for name, value in offered.items() if name in parameters})
    if not isinstance(returned, kind):
        name = getattr(function, "__name__", repr(function))
        raise WorkflowError(f"{name} must return a {kind.__name__} of agentscope.tuner, got {type(returned).__name__}")
    return returned
