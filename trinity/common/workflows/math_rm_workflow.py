"""Workflows whose reward function sees the whole conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, SimpleWorkflow

if TYPE_CHECKING:
    from trinity.common.experience import Experience


@WORKFLOWS.register_module("math_rm_workflow")
class MathRMWorkflow(SimpleWorkflow):
    """`SimpleWorkflow` whose reward function may also take the messages.

    They are `messages`, which were sent; besides, `experience` is the response with its tokens, and `ground_truth` is
    the same as `truth`. The reward function is one over a reward model, such as `rm_gallery_reward`.
    """

    arguments = {}

    def offered(self, experience: Experience) -> dict[str, Any]:
        """Return what the reward function may take, by argument name."""
        own = {"messages": self.format_messages(), "experience": experience, "ground_truth": self.truth}
        return super().offered(experience) | own


@WORKFLOWS.register_module("async_math_rm_workflow")
class AsyncMathRMWorkflow(MathRMWorkflow, AsyncSimpleWorkflow):
    """`MathRMWorkflow` on the event loop."""

    arguments = {}
