"""Workflows that evaluate mathematics in the way of Qwen2.5-Math."""

from __future__ import annotations

from typing import Any

from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, SimpleWorkflow

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def with_boxed_request(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose last question asks for a boxed answer."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is not None:
        messages[last]["content"] += BOXED
    return messages


@WORKFLOWS.register_module("math_eval_workflow")
class MathEvalWorkflow(SimpleWorkflow):
    """`SimpleWorkflow` that asks for a boxed answer.

    The default reward function is `accuracy_reward`. Sampling is that of the taskset's `rollout_args`.
    """

    arguments = {}
    default_system_prompt = "You are a helpful assistant."
    default_reward_fn = "accuracy_reward"

    def format_messages(self) -> list[dict[str, Any]]:
        """Return the messages to send, the instruction below the question."""
        return with_boxed_request(super().format_messages())


@WORKFLOWS.register_module("async_math_eval_workflow")
class AsyncMathEvalWorkflow(MathEvalWorkflow, AsyncSimpleWorkflow):
    """`MathEvalWorkflow` on the event loop."""

    arguments = {}
