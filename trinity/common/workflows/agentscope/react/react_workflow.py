"""Workflows of AgentScope's agents that reason and act in turns."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from trinity.common.errors import WorkflowError
from trinity.common.rewards.math_reward import MathBoxedRewardFn
from trinity.common.workflows.agentscope.react.react_agent import MAX_ITERS, AgentScopeReActAgent
from trinity.common.workflows.agentscope_workflow import AgentScopeWorkflow
from trinity.common.workflows.registry import WORKFLOWS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from trinity.common.experience import Experience


@cache
def final_result() -> type[BaseModel]:
    """Return the form of an agent's answer."""
    from pydantic import Field, create_model

    return create_model("FinalResult", result=(str, Field(description="Your final answer.")))


class ReActWorkflow(AgentScopeWorkflow):
    """Base: one rollout is one reply of an agent."""

    system_prompt = ""
    max_turns = MAX_ITERS
    has_meta_tool = False

    async def answer(self, toolkit: Any = None) -> tuple[str, int]:
        """Return the answer of an agent, and how many messages it holds."""
        client = self.model.get_openai_async_client()
        agent = AgentScopeReActAgent(
            client,
            client.model_path,
            self.system_prompt,
            self.generate_kwargs,
            final_result(),
            self.max_turns,
            toolkit,
            has_meta_tool=self.has_meta_tool,
        )
        reply = await agent.said(str(self.task.task_desc))
        given = (reply.metadata or {}).get("result")
        return str(given if given is not None else reply.get_text_content() or ""), await agent.num_messages()


class ReActMathWorkflow(ReActWorkflow):
    """Base: the reward is that of a boxed answer to a problem."""

    system_prompt = (
        "You solve a mathematical problem. Use the tools that you have to compute or to check. Put the final answer "
        "into \\boxed{}."
    )

    def tools(self) -> Any:
        """Return the agent's tools; None: none."""

    async def run_async(self) -> list[Experience]:
        """Return the experiences of one reply."""
        answer, num_messages = await self.answer(self.tools())
        truth = str(self.task.truth).rpartition("####")[2].strip()
        scores = MathBoxedRewardFn(**self.task.reward_fn_args)(response=answer, truth=truth)
        return self.rewarded(sum(scores.values()), {**scores, "react_memory_length": float(num_messages)})


@WORKFLOWS.register_module("agentscope_react_workflow")
@WORKFLOWS.register_module("as_react_workflow")
class AgentScopeReActWorkflow(ReActMathWorkflow):
    """A mathematical problem for an agent of AgentScope without tools."""

    arguments = {"type": "gsm8k"}
    has_meta_tool = True

    def tools(self) -> Any:
        """Return no tools.

        Raises:
            WorkflowError: `type` names another kind of task.
        """
        kind = self.task.workflow_args.get("type", "gsm8k")
        if kind != "gsm8k":
            raise WorkflowError(f"workflow_args.type must be 'gsm8k', the only kind that there is, got {kind!r}")
