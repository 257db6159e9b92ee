"""What tasksets hold: rendered prompts, lengths, bad rows, duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import xxhash

from trinity.buffer.rows import BadRow
from trinity.buffer.task_reader import TaskReader
from trinity.common.config import Config
from trinity.common.config.problems import Finding
from trinity.common.config.resolved import training_tasksets
from trinity.common.errors import TrinityError
from trinity.common.images.messages import without_images
from trinity.common.images.reading import UnreadableImage
from trinity.common.images.sizes import ImageSizes
from trinity.common.models.chat_template import chat_text, load_tokenizer
from trinity.common.workflows.task import Task, read_option
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.launch.trial.token_counts import length_ranges, token_counts
from trinity.preflight.prompts import prompt_limit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class TasksetPreview:
    """A taskset as the model will see it.

    Attributes:
        name: of the taskset.
        is_eval: it is evaluated, not trained on.
        num_rows: usable rows.
        bad: rows that are left out, and why.
        lengths: tokens of each prompt.
        limit: tokens of the longest prompt, its key, and what happens to longer ones; None: not known.
        num_images: images of all prompts; in their lengths each counts as what stands for it in the text.
        num_repeated: rows whose prompt, with its images, an earlier row has.
        overlaps: prompts that another taskset has, by its name.
        prompts: the first ones, rendered.
        is_rendered: texts and lengths are those of what the model is sent first; else of the prompt column, of which
            the workflow makes its own prompts.
    """

    name: str
    is_eval: bool
    num_rows: int
    bad: Sequence[BadRow]
    lengths: list[int] = field(default_factory=list)
    limit: tuple[int, str, str] | None = None
    num_images: int = 0
    num_repeated: int = 0
    overlaps: dict[str, int] = field(default_factory=dict)
    prompts: list[str] = field(default_factory=list)
    is_rendered: bool = True

    @property
    def num_long(self) -> int:
        """Prompts above the limit."""
        return 0 if self.limit is None else sum(length > self.limit[0] for length in self.lengths)

    def findings(self) -> list[Finding]:
        """Return what is unusual: prompts that are there twice."""
        where = f"taskset {self.name!r}"
        found = []
        if self.num_repeated:
            text = f"{where}: {self.num_repeated} rows repeat the prompt of an earlier row"
            found.append(Finding("W4040", self.name, text))
        for other, number in self.overlaps.items():
            text = f"{where}: {number} prompts are in the taskset {other!r}, too"
            found.append(Finding("W4040", self.name, text))
        return found

    def facts(self) -> dict[str, Any]:
        """Return everything in JSON types."""
        return {
            "name": self.name,
            "is_eval": self.is_eval,
            "num_rows": self.num_rows,
            "bad_rows": [str(row) for row in self.bad],
            "num_long": self.num_long,
            "num_images": self.num_images,
            "findings": [f"[{each.code}] {each.message}" for each in self.findings()],
            "num_repeated": self.num_repeated,
            "overlaps": self.overlaps,
            "histogram": [list(each) for each in length_ranges(self.lengths)],
            "is_rendered": self.is_rendered,
            "prompts": self.prompts,
        }


def previewed(config: Config, *, num_shown: int) -> list[TasksetPreview]:
    """Return what the tasksets of a stage hold, those of training first.

    Args:
        config: of a stage whose process is ready, as `trial_stage` returns it.
        num_shown: rendered prompts of each.

    Raises:
        DataError: a dataset cannot be used (E4001 to E4060).
        EnvironmentProblem: there is no tokenizer, or no chat template (E3102, E3107, E3109).
    """
    evaluated = config.buffer.explorer_input.eval_tasksets
    tokenizer = load_tokenizer(config.model)
    previews, known = list[TasksetPreview](), list[set[bytes]]()
    ratio = config.buffer.max_bad_row_ratio
    readers = [TaskReader(taskset, max_bad_row_ratio=ratio) for taskset in training_tasksets(config)]
    readers += [TaskReader(taskset, is_eval=True, max_bad_row_ratio=ratio) for taskset in evaluated]
    for reader in readers:
        prompts, is_rendered = _prompts(reader.tasks(), tokenizer, config)
        digests = [prompt.digest() for prompt in prompts]
        own = set(digests)
        previews.append(
            TasksetPreview(
                reader.config.name,
                reader.is_eval,
                len(reader),
                reader.quarantined,
                _lengths(prompts, tokenizer),
                prompt_limit(config),
                sum(len(prompt.images) for prompt in prompts),
                len(digests) - len(own),
                {other.name: len(own & seen) for other, seen in zip(previews, known, strict=True) if own & seen},
                [prompt.text for prompt in prompts[:num_shown]],
                is_rendered,
            )
        )
        known.append(own)
    return previews


class _Prompt(NamedTuple):
    """A prompt as text, with one token for each image.

    Attributes:
        text: what the chat template writes.
        images: the encoded images.
        num_more: tokens of the images beyond one each.
    """

    text: str
    images: Sequence[bytes] = ()
    num_more: int = 0

    def digest(self) -> bytes:
        """Return a hash of text and images."""
        hashed = xxhash.xxh3_128(self.text.encode("utf-8", "replace"))
        for image in self.images:
            hashed.update(xxhash.xxh3_128_digest(image))
        return hashed.digest()


def _prompts(tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase, config: Config) -> tuple[list[_Prompt], bool]:
    """Return the prompts, and whether they are those of the model."""
    prompts, is_rendered, workflow = list[_Prompt](), True, None
    sizes = ImageSizes.of_folder(Path(config.model.model_path).expanduser())
    for task in tasks:
        if not (isinstance(task.workflow, type) and issubclass(task.workflow, SimpleWorkflow)):
            prompts.append(_Prompt(str(task.task_desc if task.task_desc is not None else task.raw_task)))
            is_rendered = False
            continue
        try:
            if type(workflow) is not task.workflow:
                workflow = task.workflow(task=task, model=cast(Any, None), auxiliary_models=[])
            else:
                workflow.reset(task)
            messages, images = without_images(workflow.format_messages())
        except (TrinityError, UnreadableImage) as error:
            prompts.append(_Prompt(f"{type(error).__name__}: {error}"))
            is_rendered = False
            continue
        thinking = read_option(task.format_args, "enable_thinking")
        options = {
            "tools": task.tools,
            "enable_thinking": config.model.enable_thinking if thinking is None else thinking,
            "chat_template": read_option(task.format_args, "chat_template"),
        }
        prefix = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
        more = 0 if sizes is None else sum(max(0, sizes.num_tokens(image) - 1) for image in images)
        prompts.append(_Prompt(chat_text(tokenizer, messages, **options) + prefix, images, more))
    return prompts, is_rendered


def _lengths(prompts: Sequence[_Prompt], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    lengths = token_counts([prompt.text for prompt in prompts], tokenizer)
    return [length + prompt.num_more for length, prompt in zip(lengths, prompts, strict=True)]
