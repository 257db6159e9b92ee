"""Workflows of distillation.

The model answers, and the first auxiliary model scores the tokens of the answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trinity.common.errors import WorkflowError
from trinity.common.experience import EID, Experience
from trinity.common.workflows.eval_workflow import with_boxed_request
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.workflow import AsyncSimpleWorkflow
from trinity.runtime.worker_thread import call_in_thread

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper
    from trinity.common.workflows.task import Task


@WORKFLOWS.register_module("on_policy_distill_workflow")
class OnPolicyDistillWorkflow(AsyncSimpleWorkflow):
    """One chat with the teacher's log-probabilities in `teacher_logprobs`.

    The teacher is the first auxiliary model. Its temperature is `workflow_args.temperature`, else that of the rollout,
    so that both log-probabilities are of equally tempered distributions. The reward is that of the task's reward
    function, and 0 without one: the advantage does not read it.
    """

    needs = frozenset({"prompt", "auxiliary_model"})
    arguments = {"temperature": None}
    ranges = {"temperature": "[0, inf)"}

    def _build_reward_fn(self) -> Any:
        if self.task.reward_fn is None and self.default_reward_fn is None:
            return None
        return super()._build_reward_fn()

    def reset(self, task: Task) -> None:
        """Prepare for another task; see `SimpleWorkflow.reset`.

        Raises:
            WorkflowError: there is no auxiliary model to be the teacher (E5123).
        """
        super().reset(task)
        if not self.auxiliary_model_wrappers:
            raise WorkflowError(
                f"{type(self).__name__} needs a teacher, the first of explorer.auxiliary_models, which is empty; write "
                "explorer.auxiliary_models: [{model_path: <folder>}]",
                code="E5123",
            )
        self.teacher_model: ModelWrapper = self.auxiliary_model_wrappers[0]
        own = self.workflow_args.get("temperature")
        chosen = self.rollout_args.temperature if own is None else own
        self.temperature = (self.model.temperature if chosen is None else float(chosen)) or 1.0

    def compute_reward(self, response: Experience) -> float:
        """Return the reward of a response without a reward function.

        Subclasses define it.
        """
        return 0.0

    def score(self, responses: list[Experience]) -> list[Experience]:
        """Return the responses with reward and run number set."""
        if self.reward_fn is not None:
            return super().score(responses)
        for index, response in enumerate(responses):
            response.reward = float(self.compute_reward(response))
            response.eid = replace(response.eid or EID(), run=self.run_id_base + index)
        return responses

    async def run_async(self) -> list[Experience]:
        """Return one scored experience per repeat.

        In training it has the teacher's log-probabilities of its response.
        """
        responses = await self.model.chat_async(self.format_messages(), **self._tools(), **self.rollout_args)
        for response in [] if self.task.is_eval else responses:
            scored = await self.teacher_model.logprobs_async(response.tokens.tolist(), self.temperature)
            response.teacher_logprobs = scored[response.prompt_length - 1 :]
        return await call_in_thread(self.score, responses)


class AsyncOnPolicyDistillWorkflow(OnPolicyDistillWorkflow):
    """`OnPolicyDistillWorkflow`, which is asynchronous already."""


@WORKFLOWS.register_module("on_policy_distill_math_workflow")
class OnPolicyDistillMathWorkflow(OnPolicyDistillWorkflow):
    """`OnPolicyDistillWorkflow` that asks for a boxed answer.

    The default reward function is `accuracy_reward`.
    """

    arguments = {}
    default_system_prompt = "You are a helpful assistant."
    default_reward_fn = "accuracy_reward"

    def format_messages(self) -> list[dict[str, Any]]:
        """Return the messages to send, the instruction below the question."""
        return with_boxed_request(super().format_messages())


class AsyncOnPolicyDistillMathWorkflow(OnPolicyDistillMathWorkflow):
    """`OnPolicyDistillMathWorkflow`, which is asynchronous already."""
