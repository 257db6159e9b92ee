"""The base classes of workflows, and the workflow of one chat and reward.

Tasks are exported too. Plugins subclass `Workflow` and register with `@WORKFLOWS.register_module("name")`. A workflow
declares what it can do by class attributes (`can_reset`, `can_repeat`, `is_async`) or by the older properties
(`resettable`, `repeatable`, `asynchronous`); `describe` reads both.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from trinity.common.errors import WorkflowError
from trinity.common.rewards.reward_fn import RewardError, RewardTimeoutError
from trinity.common.workflows.options import SamplingArgs
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.task import FORMAT_DEFAULTS, RolloutArgs, Task, as_dict, read_option
from trinity.runtime.worker_thread import call_in_thread
from trinity.utils.declaration import Declared, declared_args
from trinity.utils.log import get_logger
from trinity.utils.system_prompt import chosen_system_prompt

if TYPE_CHECKING:
    from trinity.common.experience import Experience, TruncateStatus
    from trinity.common.models.model import ModelWrapper

__all__ = [
    "AsyncMathWorkflow",
    "AsyncSimpleWorkflow",
    "BaseSimpleWorkflow",
    "MathWorkflow",
    "MultiTurnWorkflow",
    "RolloutArgs",
    "SimpleWorkflow",
    "Task",
    "Workflow",
]

MATH_SYSTEM_PROMPT = """\
You solve mathematical problems. First work the problem out step by step between <think> and </think>. \
Then give only the final result between <answer> and </answer>, so that your reply has this form:
<think>
your reasoning
</think>
<answer>
the final result
</answer>"""


class Workflow(Declared):
    """Base of all workflows: attempts one task with a model.

    Attributes:
        needs: what a rollout cannot do without: `prompt`, the row's question or its messages; `reward_fn`, a reward
            function of the taskset; `auxiliary_model`, one of `explorer.auxiliary_models`.
        default_reward_fn: name of the reward function where the taskset names none.
        package: module of an optional package that it needs.
        reads_format: its prompt follows `system_prompt`, `system_prompt_key` and `reply_prefix` of the format.

    Args:
        task: what to attempt.
        model: the model under training.
        auxiliary_models: wrappers of further models, such as judges.
    """

    kind = "workflow"
    default_reward_fn: ClassVar[str | None] = None
    package: ClassVar[str] = ""
    reads_format: ClassVar[bool] = False
    can_reset: bool = False
    can_repeat: bool = False
    is_async: bool = False

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: list[Any] | None = None) -> None:
        self.task = task
        self.model = model
        self.auxiliary_model_wrappers: list[Any] = list(auxiliary_models or [])
        self._auxiliary_clients: list[Any] | None = None
        self.logger = get_logger("workflow")
        self.repeat_times = 1
        self.run_id_base = 0
        self.dropped: list[RewardError] = []
        self._rollout_args: Any = None

    @property
    def auxiliary_models(self) -> list[Any]:
        """OpenAI clients of the further models, each with its `model_path`.

        They are `openai.AsyncOpenAI` in an asynchronous workflow; `auxiliary_model_wrappers` have the models' own
        methods.
        """
        if self._auxiliary_clients is None:
            is_async = self.is_async or self.asynchronous or type(self).run is Workflow.run
            name = "get_openai_async_client" if is_async else "get_openai_client"
            self._auxiliary_clients = [getattr(model, name)() for model in self.auxiliary_model_wrappers]
        return self._auxiliary_clients

    @auxiliary_models.setter
    def auxiliary_models(self, clients: list[Any]) -> None:
        """Use other clients."""
        self._auxiliary_clients = clients

    @property
    def resettable(self) -> bool:
        """Older name of `can_reset`."""
        return self.can_reset

    @property
    def repeatable(self) -> bool:
        """Older name of `can_repeat`."""
        return self.can_repeat

    @property
    def asynchronous(self) -> bool:
        """Older name of `is_async`."""
        return self.is_async

    @property
    def rollout_args(self) -> RolloutArgs:
        """Sampling arguments of the task; `n` is the number of rollouts per call."""
        source = self.task.rollout_args if self._rollout_args is None else self._rollout_args
        given = {key: value for key, value in as_dict(source).items() if value is not None}
        return RolloutArgs({**given, "n": self.repeat_times})

    @rollout_args.setter
    def rollout_args(self, value: Any) -> None:
        """Use other sampling arguments until the next reset."""
        self._rollout_args = value

    def reset(self, task: Task) -> None:
        """Prepare for another task; replace everything that depends on the last."""
        self._forget(task)

    def _forget(self, task: Task) -> None:
        self.task = task
        self.dropped = []
        self._rollout_args = None

    def set_repeat_times(self, repeat_times: int, run_id_base: int = 0) -> None:
        """Set how many rollouts one call makes, and their first `run_id`."""
        self.repeat_times = repeat_times
        if isinstance(self.task.rollout_args, SamplingArgs):  # for subclasses that pass these on as they are
            self.task.rollout_args.n = repeat_times
        self.run_id_base = run_id_base

    def run(self) -> list[Experience]:
        """Attempt the task and return its experiences.

        Raises:
            WorkflowError: the class defines neither this method nor `run_async`.
        """
        raise WorkflowError(f"{type(self).__name__} must define run() or, with is_async = True, run_async()")

    async def run_async(self) -> list[Experience]:
        """Attempt the task on the event loop and return its experiences.

        Raises:
            WorkflowError: the class says that it is asynchronous and does not define this method.
        """
        raise WorkflowError(f"{type(self).__name__} is asynchronous and must define run_async()")


class MultiTurnWorkflow(Workflow):
    """Base of workflows that turn a whole conversation into one experience."""

    def process_messages_to_experience(
        self,
        messages: list[dict[str, Any]],
        reward: float,
        info: dict[str, Any] | None = None,
        truncate_status: TruncateStatus | None = None,
    ) -> Experience:
        """Return the conversation as one experience.

        Its action mask covers all responses. If their calls are not one sequence, this is the last, and the rollout
        also gets the earlier ones, with this reward. A response that was not sampled in the rollout is tokenised
        from its text; `info["retokenised_turns"]` counts these.

        Args:
            messages: the conversation, system prompt included.
            reward: of the whole conversation; a conversation cut short by a length limit gets 0.
            info: kept on the experience; its numbers become metrics.
            truncate_status: `prompt_truncated` or `response_truncated` where the workflow knows it.
        """
        experience = self.model.convert_messages_to_experience(messages)
        return self._rewarded(experience, reward=reward, info=info or {}, truncate_status=truncate_status)

    async def process_messages_to_experience_async(
        self,
        messages: list[dict[str, Any]],
        reward: float,
        info: dict[str, Any] | None = None,
        truncate_status: TruncateStatus | None = None,
    ) -> Experience:
        """Return the conversation as one experience, on the event loop."""
        experience = await self.model.convert_messages_to_experience_async(messages)
        return self._rewarded(experience, reward=reward, info=info or {}, truncate_status=truncate_status)

    @staticmethod
    def _rewarded(
        experience: Experience, *, reward: float, info: dict[str, Any], truncate_status: TruncateStatus | None
    ) -> Experience:
        experience.truncate_status = experience.truncate_status or truncate_status
        experience.reward = 0.0 if experience.truncate_status else float(reward)
        experience.info = {**experience.info, **info}
        numbers = {key: float(value) for key, value in info.items() if isinstance(value, int | float)}
        experience.metrics = {**experience.metrics, **numbers}
        return experience


@WORKFLOWS.register_module("simple_workflow")
class SimpleWorkflow(Workflow):
    """One chat and one reward function.

    The prompt is the row's `prompt_key` column (a text, or a list of messages) or its `messages_key` column; the
    truth is its `response_key` column. The system prompt is, in this order: `workflow_args.system_prompt`, the
    row's `system_prompt_key` column, `format.system_prompt`, the class's default. An empty one means none. A list of
    messages is sent as it is. The tools of the `tools_key` column go to the chat template.
    """

    needs = frozenset({"prompt", "reward_fn"})
    reads_format = True
    arguments = {"system_prompt": None}
    ranges = {"system_prompt": "text"}
    can_reset = True
    can_repeat = True
    default_system_prompt: str | None = None

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: list[Any] | None = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.reset(task)

    def reset(self, task: Task) -> None:
        """Prepare row, prompts, sampling arguments and reward function of a task.

        Raises:
            WorkflowError: the task names no reward function and this workflow has none of its own.
        """
        super().reset(task)
        self.format_args = task.format_args
        self.workflow_args = task.workflow_args or {}
        self.reward_fn_args = task.reward_fn_args or {}
        self.raw_task = task.raw_task or {}
        self.task_desc = task.task_desc
        self.truth = task.truth
        self.reply_prefix = read_option(task.format_args, "reply_prefix")
        self.system_prompt = self._choose_system_prompt()
        self.reward_fn = self._build_reward_fn()

    def _choose_system_prompt(self) -> str | None:
        if "system_prompt" in self.workflow_args:
            return self.workflow_args["system_prompt"] or None
        of_row = self.task.column("system_prompt_key")
        configured = read_option(self.task.format_args, "system_prompt")
        return chosen_system_prompt(of_row, configured, default=self.default_system_prompt)

    def _build_reward_fn(self) -> Any:
        reward_fn: Any = self.task.reward_fn
        if reward_fn is None and self.default_reward_fn is not None:
            from trinity.common.rewards import REWARD_FUNCTIONS

            reward_fn = REWARD_FUNCTIONS.get(self.default_reward_fn)
        if reward_fn is None:
            raise WorkflowError(
                f"{type(self).__name__} needs a reward function, the task has none; "
                "set default_reward_fn_type of the taskset",
                code="E5118",
            )
        if not isinstance(reward_fn, type):
            return functools.partial(reward_fn, **self.reward_fn_args) if self.reward_fn_args else reward_fn
        return reward_fn(**(declared_args(reward_fn, kind="reward_fn") | self.reward_fn_args))

    def format_messages(self) -> list[dict[str, Any]]:
        """Return system prompt, prompt and reply prefix as messages.

        Raises:
            WorkflowError: the row has neither the prompt column nor the messages column.
        """
        prompt = self.task_desc
        if prompt is None or read_option(self.format_args, "prompt_type") == "messages":
            prompt = self.task.column("messages_key")
        if isinstance(prompt, str):
            messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
            messages.append({"role": "user", "content": prompt})
        elif isinstance(prompt, list) and prompt:
            messages = [dict(message) for message in prompt]
        else:
            key = read_option(self.format_args, "prompt_key") or FORMAT_DEFAULTS["prompt_key"]
            raise WorkflowError(
                f"column {key!r} must hold a text or a list of messages, got {type(prompt).__name__}; "
                f"the row's columns: {', '.join(map(str, self.raw_task))}; set format.prompt_key of the taskset",
                code="E5119",
            )
        if self.reply_prefix:
            messages.append({"role": "assistant", "content": self.reply_prefix})
        return messages

    def offered(self, experience: Experience) -> dict[str, Any]:
        """Return what the reward function may take, by argument name.

        A response of an author's own model may have its text alone; its tokens and `info` are then None.
        """
        tokens = getattr(experience, "tokens", None)
        return {
            "response": experience.response_text,
            "prompt": self.task_desc,
            "truth": self.truth,
            "response_token": None if tokens is None else tokens[experience.prompt_length :],
            "info": getattr(experience, "info", None),
            "row": self.raw_task,
        }

    def scores(self, experience: Experience) -> dict[str, float]:
        """Return the named scores of a response; their sum is its reward.

        Raises:
            RewardError: the response could not be scored.
        """
        from trinity.common.rewards.scores import scores_of

        return scores_of(self.reward_fn, self.offered(experience))

    def score(self, responses: list[Experience]) -> list[Experience]:
        """Score responses; return those that could be scored.

        Reward, metrics and run number are set. A response whose scorer fails is left out, its error kept in `dropped`.

        Raises:
            RewardError: none of the responses could be scored; a `RewardTimeoutError` where the first one was.
        """
        from trinity.common.experience import EID

        scored: list[Experience] = []
        for index, experience in enumerate(responses):
            try:
                scores = self.scores(experience)
            except RewardError as error:
                self.dropped.append(error)
                self.logger.warning("run %d dropped: %s", self.run_id_base + index, error)
                continue
            experience.metrics = {**(experience.metrics or {}), **scores}
            experience.reward = float(sum(scores.values()))
            experience.eid = replace(experience.eid or EID(), run=self.run_id_base + index)
            scored.append(experience)
        if responses and not scored:
            first = self.dropped[-len(responses)]
            said = f"none of {len(responses)} responses could be scored; first: {first}"
            raise (RewardTimeoutError if isinstance(first, RewardTimeoutError) else RewardError)(said) from first
        return scored

    def run(self) -> list[Experience]:
        """Return one scored experience per rollout."""
        return self.score(self.model.chat(self.format_messages(), **self._tools(), **self.rollout_args))

    def _tools(self) -> dict[str, Any]:
        """Return the argument with the row's tools, where it has some."""
        tools = self.task.tools
        return {"tools": tools} if tools else {}


class BaseSimpleWorkflow(SimpleWorkflow):
    """`SimpleWorkflow` for a class that makes one rollout per call.

    It says itself what it can do, as published.
    """

    can_reset = False
    can_repeat = False


@WORKFLOWS.register_module("async_simple_workflow")
class AsyncSimpleWorkflow(SimpleWorkflow):
    """`SimpleWorkflow` on the event loop; one call makes all rollouts."""

    arguments = {}
    is_async = True

    async def run_async(self) -> list[Experience]:
        """Return one scored experience per rollout, scored off the event loop."""
        responses = await self.model.chat_async(self.format_messages(), **self._tools(), **self.rollout_args)
        return await call_in_thread(self.score, responses)


@WORKFLOWS.register_module("math_workflow")
class MathWorkflow(SimpleWorkflow):
    """`SimpleWorkflow` with a think/answer prompt and `math_reward`."""

    default_system_prompt = MATH_SYSTEM_PROMPT
    default_reward_fn = "math_reward"


@WORKFLOWS.register_module("async_math_workflow")
class AsyncMathWorkflow(AsyncSimpleWorkflow):
    """`MathWorkflow` on the event loop."""

    default_system_prompt = MATH_SYSTEM_PROMPT
    default_reward_fn = "math_reward"
