"""Workflows: how a model attempts a task and what it learns from.

An attempt becomes experiences. Built-in workflows and those of plugins use the same decorator:
`@WORKFLOWS.register_module("my_workflow")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trinity.common.workflows.registry import WORKFLOW_CONTENTS, WORKFLOWS

if TYPE_CHECKING:
    from trinity.common.workflows.workflow import Task, Traits, Workflow

__all__ = ["WORKFLOWS", "WORKFLOW_CONTENTS", "Task", "Traits", "Workflow", "describe", "reset_workflow"]


def __getattr__(name: str) -> Any:
    if name in {"Task", "Traits", "Workflow", "describe", "reset_workflow"}:
        from trinity.common.workflows import workflow

        return getattr(workflow, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
