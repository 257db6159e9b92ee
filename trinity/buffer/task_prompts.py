"""What the model is sent first for a task, and how many tokens it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import xxhash

from trinity.common.config.model import ModelConfig
from trinity.common.images.messages import without_images
from trinity.common.images.sizes import ImageSizes
from trinity.common.models.chat_template import chat_text, encode_text
from trinity.common.workflows.task import Task, read_option
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.utils.system_prompt import chosen_system_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TaskPrompt(NamedTuple):
    """A prompt as text, with one token for each image.

    Attributes:
        text: what the chat template writes.
        images: the encoded images.
        num_more: tokens of the images beyond one each.
        fault: why the workflow could not make it; empty if it did.
        is_rendered: it is what the workflow sends first; else it is made of the prompt column, of which the workflow
            makes its own prompts.
        has_prompt: there is a prompt; else the text is the row.
    """

    text: str
    images: Sequence[bytes] = ()
    num_more: int = 0
    fault: str = ""
    is_rendered: bool = True
    has_prompt: bool = True

    def digest(self) -> bytes:
        """Return a hash of text and images."""
        hashed = xxhash.xxh3_128(self.text.encode("utf-8", "replace"))
        for image in self.images:
            hashed.update(xxhash.xxh3_128_digest(image))
        return hashed.digest()


class TaskPrompts:
    """Renders the prompts of tasks as the engine does.

    Args:
        tokenizer: of the model, with its chat template.
        model: section `model` of the run.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, model: ModelConfig) -> None:
        self.tokenizer = tokenizer
        self._enable_thinking = model.enable_thinking
        self._sizes = ImageSizes.of_folder(Path(model.model_path).expanduser())
        self._workflow: SimpleWorkflow | None = None

    @property
    def counts_images(self) -> bool:
        """Whether the size of an image says how many tokens it has."""
        return self._sizes is not None

    def of(self, task: Task) -> TaskPrompt:
        """Return the prompt of a task.

        Raises:
            EnvironmentProblem: no chat template, or it fails.
        """
        if not (isinstance(task.workflow, type) and issubclass(task.workflow, SimpleWorkflow)):
            return self._of_columns(task)
        try:
            if type(self._workflow) is not task.workflow:
                self._workflow = task.workflow(task=task, model=cast(Any, None), auxiliary_models=[])
            else:
                self._workflow.reset(task)
            messages, images = without_images(self._workflow.format_messages())
        except Exception as error:  # noqa: BLE001  a class of a user's may do anything without a model
            self._workflow = None
            return self._of_columns(task)._replace(fault=f"{type(error).__name__}: {error}")
        return self._rendered(task, messages, images)

    def num_tokens(self, prompt: TaskPrompt) -> int:
        """Return the number of tokens of a prompt; 0 if there is none."""
        if not prompt.has_prompt:
            return 0
        return len(encode_text(self.tokenizer, prompt.text, is_whole=False)) + prompt.num_more

    def _of_columns(self, task: Task) -> TaskPrompt:
        messages = _columns(task)
        if not messages:
            whole = task.raw_task if task.task_desc is None else task.task_desc
            return TaskPrompt(str(whole), is_rendered=False, has_prompt=False)
        return self._rendered(task, messages, [])._replace(is_rendered=False)

    def _rendered(self, task: Task, messages: list[dict[str, Any]], images: Sequence[bytes]) -> TaskPrompt:
        thinking = read_option(task.format_args, "enable_thinking")
        prefix = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
        text = chat_text(
            self.tokenizer,
            messages,
            tools=task.tools,
            enable_thinking=self._enable_thinking if thinking is None else thinking,
            chat_template=read_option(task.format_args, "chat_template"),
        )
        sizes = self._sizes
        more = 0 if sizes is None else sum(max(0, sizes.num_tokens(image) - 1) for image in images)
        return TaskPrompt(text + prefix, images, more)


def _columns(task: Task) -> list[dict[str, Any]]:
    """Return the prompt in the columns of a row as messages."""
    prompt = task.task_desc
    if prompt is None or read_option(task.format_args, "prompt_type") == "messages":
        prompt = task.column("messages_key")
    if isinstance(prompt, list):
        return [dict(message) for message in prompt if isinstance(message, dict)]
    if not isinstance(prompt, str):
        return []
    system = chosen_system_prompt(task.column("system_prompt_key"), read_option(task.format_args, "system_prompt"))
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": prompt}]
