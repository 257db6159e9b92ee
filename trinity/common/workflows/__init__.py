"""Workflows: how a model attempts a task and what it learns from.

A rollout gives experiences. Built-in workflows and those of plugins use the same decorator:
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
    from trinity.common.workflows.traits import Traits, describe, reset_workflow
    from trinity.common.workflows.workflow import (
        AsyncMathWorkflow,
        AsyncSimpleWorkflow,
        MathWorkflow,
        MultiTurnWorkflow,
        SimpleWorkflow,
        Task,
        Workflow,
    )

_ELSEWHERE = {
    "AsyncRewardPropagationWorkflow": "step_wise_workflow",
    "AsyncStepWiseRewardWorkflow": "step_wise_workflow",
    "RewardPropagationWorkflow": "step_wise_workflow",
    "StepWiseRewardWorkflow": "step_wise_workflow",
    "Traits": "traits",
    "describe": "traits",
    "reset_workflow": "traits",
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
    return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE.get(name, 'workflow')}"), name)
