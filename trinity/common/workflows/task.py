"""A task: one row of a taskset, with the workflow that attempts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from trinity.common.errors import WorkflowError
from trinity.common.workflows.options import FormatArgs, SamplingArgs, plain
from trinity.utils.nested import as_written

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper

SAMPLING_KEYS = ("n", "temperature", "top_p", "top_k", "min_tokens", "max_tokens", "stop", "seed", "logprobs")
FORMAT_DEFAULTS: dict[str, Any] = {
    "prompt_key": "prompt",
    "response_key": "response",
    "messages_key": "message",
    "tools_key": "tools",
}
TEMPLATE_ARGS = ("chat_template", "enable_thinking")


def read_option(options: Any, key: str) -> Any:
    """Return one setting of `options`; `None` where it is absent.

    `options` is a mapping, a dataclass or a configuration model.
    """
    if isinstance(options, Mapping):
        return options.get(key)
    # Published plugins pass format arguments as configuration models; their keys are attributes.
    return getattr(options, key, None)


def as_dict(options: Any) -> dict[str, Any]:
    """Return all settings of `options`; empty for `None`.

    `options` is a mapping, a dataclass or a configuration model.
    """
    if options is None:
        return {}
    if isinstance(options, Mapping):
        return dict(options)
    if is_dataclass(options):
        return {item.name: getattr(options, item.name) for item in fields(options)}
    return dict(options)  # a pydantic model iterates over its fields


class RolloutArgs(dict[str, Any]):
    """Sampling arguments as a mapping with attributes.

    Plugins read them as `args["temperature"]`, `args.temperature` or `**args`.

    Arguments that are not set are absent from the mapping and read as `None` by attribute.
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in SAMPLING_KEYS:
            return None
        raise AttributeError(f"rollout_args has no {name!r}; set: {', '.join(sorted(self))}")


@dataclass
class Task:
    """One row of a taskset, with the workflow that attempts it.

    Attributes:
        workflow: class that attempts the task, one of `Workflow`.
        repeat_times: number of rollouts (the group size).
        format_args: names of the row's columns (`prompt_key`, `response_key`, ...), of this task alone.
        rollout_args: sampling arguments (`temperature`, `top_p`, `top_k`, `max_tokens`, ...), of this task alone.
        workflow_args: the workflow's own settings.
        reward_fn_args: constructor arguments of the reward function.
        is_eval: whether the task is evaluated instead of trained on.
        reward_fn: class of the reward function.
        raw_task: the row as read.
        batch_id: explore step, or step and taskset of an evaluation.
        task_id: index within the batch.
        index: position in the dataset, as the selector counts it.
    """

    workflow: type[Any] = None  # type: ignore[assignment]
    repeat_times: int | None = None
    format_args: Any = None
    rollout_args: Any = None
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    reward_fn: Any = None
    raw_task: dict[str, Any] | None = None
    batch_id: int | str = ""
    task_id: int | str = ""
    index: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.format_args = plain(self.format_args, FormatArgs)
        self.rollout_args = plain(self.rollout_args, SamplingArgs)

    def to_workflow(self, model: ModelWrapper, auxiliary_models: list[Any] | None = None) -> Any:
        """Return a workflow that attempts this task with `model`.

        Raises:
            WorkflowError: the task names no workflow (E5108).
        """
        if self.workflow is None:
            raise WorkflowError("the task has no workflow; make it with Task(workflow=...)", code="E5108")
        return self.workflow(task=self, model=model, auxiliary_models=auxiliary_models)

    def to_dict(self) -> dict[str, Any] | None:
        """Return the row as read."""
        return self.raw_task

    def column(self, key_name: str) -> Any:
        """Return the row's value in the column that the format names.

        `key_name` is the key of the format; `None` where the column is absent.
        """
        key = read_option(self.format_args, key_name) or FORMAT_DEFAULTS.get(key_name)
        return None if key is None or self.raw_task is None else self.raw_task.get(key)

    @property
    def task_desc(self) -> Any:
        """The row's prompt, a text or a list of messages."""
        return self.column("prompt_key")

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """The row's tools for the chat template; None without any."""
        return as_written(self.column("tools_key")) or None

    @property
    def truth(self) -> Any:
        """The truth of the row."""
        return self.column("response_key")
