"""Workflows: how a model attempts a task and what it learns from.

An attempt becomes experiences. Built-in workflows and those of plugins use the same decorator:
`@WORKFLOWS.register_module("my_workflow")`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trinity.common.workflows.registry import WORKFLOW_CONTENTS, WORKFLOWS

if TYPE_CHECKING:
    from trinity.common.workflows.step_wise_workflow import (
        AsyncRewardPropagationWorkflow,
        AsyncStepWiseRewardWorkflow,
        RewardPropagationWorkflow,
        StepWiseRewardWorkflow,
    )
    from trinity.common.workflows.workflow import (
        AsyncMathWorkflow,
        AsyncSimpleWorkflow,
        MathWorkflow,
        MultiTurnWorkflow,
        SimpleWorkflow,
        Task,
        Traits,
        Workflow,
        describe,
        reset_workflow,
    )

_STEP_WISE = {
    "AsyncRewardPropagationWorkflow",
    "AsyncStepWiseRewardWorkflow",
    "RewardPropagationWorkflow",
    "StepWiseRewardWorkflow",
}

__all__ = [
    "WORKFLOWS",
    "WORKFLOW_CONTENTS",
    "AsyncMathWorkflow",
    "AsyncRewardPropagationWorkflow",
    "AsyncSimpleWorkflow",
    "AsyncStepWiseRewardWorkflow",
    "MathWorkflow",
    "MultiTurnWorkflow",
    "RewardPropagationWorkflow",
    "SimpleWorkflow",
    "StepWiseRewardWorkflow",
    "Task",
    "Traits",
    "Workflow",
    "describe",
    "reset_workflow",
]


def __getattr__(name: str) -> Any:
    """Import a class when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "step_wise_workflow" if name in _STEP_WISE else "workflow"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
