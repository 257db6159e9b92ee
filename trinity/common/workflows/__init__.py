"""Workflows: how a model attempts a task and how the attempt becomes experiences.

Every built-in workflow is one line of `WORKFLOW_CONTENTS`. A plugin adds its own with the same decorator:
`@WORKFLOWS.register_module("my_workflow")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trinity.utils.registry import Entry, Registry

if TYPE_CHECKING:
    from trinity.common.workflows.workflow import Task, Traits, Workflow

_PLACE = "trinity.common.workflows.workflow"
_DISTILL = "trinity.common.workflows.on_policy_distill_workflow"

WORKFLOW_CONTENTS: dict[str, Entry] = {
    "simple_workflow": Entry(
        f"{_PLACE}:SimpleWorkflow", needs=frozenset({"reward_fn"}), doc="One chat, one reward function."
    ),
    "async_simple_workflow": Entry(
        f"{_PLACE}:AsyncSimpleWorkflow", needs=frozenset({"reward_fn"}), doc="simple_workflow on the event loop."
    ),
    "math_workflow": Entry(f"{_PLACE}:MathWorkflow", doc="simple_workflow that asks for reasoning and an answer."),
    "async_math_workflow": Entry(f"{_PLACE}:AsyncMathWorkflow", doc="math_workflow on the event loop."),
    "on_policy_distill_workflow": Entry(
        f"{_DISTILL}:OnPolicyDistillWorkflow", doc="One chat whose tokens the first auxiliary model scores."
    ),
    "on_policy_distill_math_workflow": Entry(
        f"{_DISTILL}:OnPolicyDistillMathWorkflow", doc="on_policy_distill_workflow that asks for a boxed answer."
    ),
}

WORKFLOWS = Registry("workflow", WORKFLOW_CONTENTS)

__all__ = ["WORKFLOWS", "WORKFLOW_CONTENTS", "Task", "Traits", "Workflow", "describe", "reset_workflow"]


def __getattr__(name: str) -> Any:
    if name in {"Task", "Traits", "Workflow", "describe", "reset_workflow"}:
        from trinity.common.workflows import workflow

        return getattr(workflow, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
