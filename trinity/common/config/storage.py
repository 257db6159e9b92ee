"""The published common form of a taskset and an experience buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trinity.common.config.base import Section
from trinity.common.config.buffer import (
    DataSelectorConfig,
    ExperienceBufferConfig,
    FormatConfig,
    GenerationConfig,
    ReplayBufferConfig,
    TasksetConfig,
)

OF_TASKS = (None, "", "task")


@dataclass
class StorageConfig:
    """What readers and writers of buffers take in place of a section.

    The fields are those of `TasksetConfig` and `ExperienceBufferConfig`; `wrap_in_ray` changes nothing.
    """

    name: str = ""
    storage_type: str = "file"
    path: str | Sequence[str] | None = None
    repeat_times: int | None = None
    index: int = 0
    split: str = "train"
    subset_name: str | None = None
    format: FormatConfig = field(default_factory=FormatConfig)
    capacity: int = 10000
    max_read_timeout: float = 1800.0
    replay_buffer: ReplayBufferConfig | None = field(default_factory=ReplayBufferConfig)
    max_retry_times: int = 3
    max_retry_interval: float = 1.0
    default_workflow_type: str | None = None
    default_reward_fn_type: str | None = None
    rollout_args: GenerationConfig = field(default_factory=GenerationConfig)
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    data_selector: DataSelectorConfig = field(default_factory=DataSelectorConfig)
    enable_progress_bar: bool | None = False
    ray_namespace: str | None = None
    wrap_in_ray: bool = True
    schema_type: str | None = None
    total_epochs: int = 1
    total_steps: int | None = None
    batch_size: int = 0
    tokenizer_path: str | None = None
    is_eval: bool = False

    def section(self) -> TasksetConfig | ExperienceBufferConfig:
        """Return the section that these values describe.

        A file without a schema, and what has the schema `task`, is a taskset; all else is an experience buffer.

        Raises:
            pydantic.ValidationError: a value is not of its field's type.
        """
        is_table = self.storage_type == "sql" and self.schema_type == "task"
        if is_table or (self.storage_type == "file" and self.schema_type in OF_TASKS):
            return TasksetConfig.model_validate(self._values(TasksetConfig))
        return self.buffer_section()

    def buffer_section(self) -> ExperienceBufferConfig:
        """Return the experience buffer that these values describe."""
        return ExperienceBufferConfig.model_validate(self._values(ExperienceBufferConfig))

    def _values(self, of: type[Section]) -> dict[str, Any]:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in given.items() if name in of.model_fields and value not in (None, "")}
