"""What tasksets hold: rendered prompts, lengths, bad rows, duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from trinity.buffer.quarantine import num_admitted
from trinity.buffer.rows import BadRow
from trinity.buffer.task_prompts import TaskPrompt, TaskPrompts
from trinity.buffer.task_reader import TaskReader
from trinity.common.config import Config
from trinity.common.config.problems import Finding
from trinity.common.config.resolved import training_tasksets
from trinity.common.models.chat_template import load_tokenizer
from trinity.common.workflows.task import Task
from trinity.launch.trial.bad_rows import ANY, too_many_bad
from trinity.launch.trial.overlaps import note_overlaps, task_digest
from trinity.launch.trial.token_counts import length_ranges, token_counts
from trinity.preflight.prompts import prompt_limit, taskset_limit

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
        num_images: images of all prompts.
        counts_images: their tokens are in the lengths; else each counts as what stands for it in the text.
        num_repeated: rows whose prompt, with its images, an earlier row has.
        overlaps: rows that ask what another taskset or dataset asks, by its name, whatever the system prompt is.
        prompts: the first ones, rendered.
        is_rendered: texts and lengths are those of what the model is sent first; else of the prompt column, of which
            the workflow makes its own prompts.
        max_bad: rows that a run leaves out at most.
        ask: returns a hash of what each row asks.
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
    counts_images: bool = True
    max_bad: int = 0
    ask: Callable[[], frozenset[bytes]] = frozenset

    @cached_property
    def asked(self) -> frozenset[bytes]:
        """Hashes of what its rows ask, found when they are compared."""
        return self.ask()

    @property
    def num_long(self) -> int:
        """Prompts above the limit."""
        return 0 if self.limit is None else sum(length > self.limit[0] for length in self.lengths)

    def findings(self) -> list[Finding]:
        """Return what a run refuses, and what is unusual."""
        where = f"taskset {self.name!r}"
        found = []
        if len(self.bad) > self.max_bad:
            found.append(too_many_bad(self.bad, self.max_bad, key=self.name, where=where))
        if self.num_repeated:
            text = f"{where}: {self.num_repeated} rows repeat the prompt of an earlier row"
            found.append(Finding("W4040", self.name, text))
        for other, number in self.overlaps.items():
            text = f"{where}: {number} prompts are in {other!r}, too"
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
    previews, renderer = list[TasksetPreview](), TaskPrompts(tokenizer, model=config.model)
    readers = [TaskReader(taskset, max_bad_row_ratio=ANY) for taskset in training_tasksets(config)]
    readers += [TaskReader(taskset, is_eval=True, max_bad_row_ratio=ANY) for taskset in evaluated]
    for reader in readers:
        tasks = reader.tasks()
        prompts = [renderer.of(task) for task in tasks]
        num_rows = len(reader) + len(reader.quarantined)
        preview = TasksetPreview(reader.config.name, reader.is_eval, len(reader), reader.quarantined)
        preview.max_bad = num_admitted(num_rows, max_bad_row_ratio=config.buffer.max_bad_row_ratio)
        preview.lengths = _lengths(prompts, tokenizer)
        preview.limit = taskset_limit(config, reader.config) or prompt_limit(config)
        preview.num_images = sum(len(prompt.images) for prompt in prompts)
        preview.counts_images = renderer.counts_images
        preview.num_repeated = len(prompts) - len({prompt.digest() for prompt in prompts})
        preview.prompts = [prompt.fault or prompt.text for prompt in prompts[:num_shown]]
        preview.is_rendered = all(prompt.is_rendered for prompt in prompts)
        preview.ask = partial(_asked, tasks, prompts)
        previews.append(preview)
    note_overlaps(previews)
    return previews


def _asked(tasks: Sequence[Task], prompts: Sequence[TaskPrompt]) -> frozenset[bytes]:
    return frozenset(task_digest(task, prompt.images) for task, prompt in zip(tasks, prompts, strict=True))


def _lengths(prompts: Sequence[TaskPrompt], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    lengths = token_counts([prompt.text for prompt in prompts], tokenizer)
    return [length + prompt.num_more for length, prompt in zip(lengths, prompts, strict=True)]
