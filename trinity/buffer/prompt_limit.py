"""The limit on the length of prompts, counted as the model is sent them."""

from __future__ import annotations

from dataclasses import dataclass

from trinity.buffer.task_prompts import TaskPrompts
from trinity.common.workflows.task import Task


@dataclass(frozen=True)
class PromptLimit:
    """The longest prompt of a taskset.

    Attributes:
        prompts: renders the prompts.
        max_tokens: tokens of the longest prompt.
    """

    prompts: TaskPrompts
    max_tokens: int

    def num_tokens(self, task: Task) -> int:
        """Return the number of tokens of a task's prompt.

        System prompt, chat template, opening of the response and images count; of a workflow that makes its own
        prompts, those of the prompt column.

        Raises:
            EnvironmentProblem: no chat template, or it fails.
        """
        return self.prompts.num_tokens(self.prompts.of(task))
