"""The task probe of `trinity validate --probe`; uses no model.

It builds and scores one task of each taskset. Whatever the model would answer, the workflow must be built from
the row, and the reward function must accept an empty answer and the row's own truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from trinity.buffer.task_reader import TaskReader
from trinity.common.config import Config, Finding
from trinity.common.config.buffer import TasksetConfig
from trinity.common.errors import DataError
from trinity.common.experience import Experience
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.preflight.data import tasksets
from trinity.runtime.failure import user_place


def probe_tasks(config: Config) -> Iterator[Finding]:
    """Yield why a taskset's first task cannot be attempted or scored (E1912)."""
    for key, taskset in tasksets(config).items():
        reason = _reason(taskset, config.buffer.max_bad_row_ratio)
        if reason is not None:
            yield Finding("E1912", key, f"taskset {taskset.name!r}: {reason}")


def _reason(taskset: TasksetConfig, max_bad_row_ratio: float) -> str | None:
    try:
        task = TaskReader(taskset, max_bad_row_ratio=max_bad_row_ratio).task(0)
    except DataError as error:
        return str(error.args[0])
    if not issubclass(task.workflow, SimpleWorkflow):
        return None  # what else a workflow asks of a model only the run can tell
    model: Any = None
    answers = [""] + [task.truth] * isinstance(task.truth, str)
    try:
        workflow = task.workflow(task=task, model=model)
        workflow.format_messages()
    except Exception as error:  # noqa: BLE001  the user's code, whatever it raises
        return f"the workflow {task.workflow.__name__} cannot be built: {_told(error)}"
    for answer in answers:
        reason = _of_reward(workflow, answer)
        if reason is not None:
            return f"the reward function {type(workflow.reward_fn).__name__} {reason}, scoring {answer[:60]!r}"
    return None


def _of_reward(workflow: SimpleWorkflow, answer: str) -> str | None:
    experience = Experience(tokens=torch.tensor([0, 0]), prompt_length=1, response_text=answer)
    try:
        (scored,) = workflow.score([experience])
    except Exception as error:  # noqa: BLE001  the user's code, whatever it raises
        return f"fails: {_told(error)}"
    is_number = scored.reward is not None and math.isfinite(scored.reward)
    return None if is_number else f"gives {scored.reward}, which is no finite number"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error} ({user_place(error)})"
