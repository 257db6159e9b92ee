"""Checks of prompt lengths, counted with the model's `tokenizer.json`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.buffer.checks import prompt_type, row_faults
from trinity.buffer.data_files import data_files, places_of
from trinity.buffer.image_rows import num_image_tokens
from trinity.buffer.rows import DataRow, read_rows
from trinity.buffer.training_rows import decoded, system_prompt_of
from trinity.common.config.buffer import FormatConfig, TasksetConfig
from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.common.images.messages import PLACEHOLDER
from trinity.common.images.sizes import ImageSizes
from trinity.preflight.data import tasksets
from trinity.utils.remote.addresses import is_remote

if TYPE_CHECKING:
    from trinity.common.config import Config

MAX_ROWS = 1000


def check_prompts(config: Config) -> Iterator[Finding]:
    """Yield the number of too long prompts of each taskset (W4014)."""
    longest = prompt_limit(config)
    if longest is None:
        return
    for place, taskset in tasksets(config).items():
        limit, key, what = taskset_limit(config, taskset) or longest
        found = long_prompts(taskset, model=Path(config.model.model_path).expanduser(), limit=limit)
        if found is None or not found.num_long:
            continue
        yield Finding(
            "W4014",
            f"{place}.path",
            f"{found.num_long} of the first {found.num_rows} prompts of `{place}.path` have more than {limit} tokens, "
            f"the longest {found.longest} before the chat template: they are {what}",
            suggestion=f"raise `{key}`, or leave them out",
        )


def taskset_limit(config: Config, taskset: TasksetConfig) -> tuple[int, str, str] | None:
    """Return what `prompt_limit` does, as a taskset itself decides it.

    It is None of a taskset that keeps long prompts.
    """
    longest, fates = (
        config.model.max_prompt_tokens,
        {"drop": "left out", "refuse": "refused: the run does not begin"},
    )
    if longest is None or taskset.long_prompts not in fates:
        return None
    return longest, str(KEYS.model.max_prompt_tokens), fates[taskset.long_prompts]


def prompt_limit(config: Config) -> tuple[int, str, str] | None:
    """Return the longest prompt, its key, and what happens to others.

    It is None where the lengths are not known.
    """
    model = config.model
    if model.max_prompt_tokens is None or model.max_model_len is None:
        return None
    if model.enable_prompt_truncation:
        what = "cut, and not trained on" if model.prompt_truncation == "stop" else "cut, and then sampled from"
        return model.max_prompt_tokens, str(KEYS.model.max_prompt_tokens), what
    return model.max_model_len - 1, str(KEYS.model.max_model_len), "refused by the engine"


@dataclass(frozen=True)
class LongPrompts:
    """The counts of a taskset's long prompts.

    Attributes:
        num_long: prompts above the limit.
        num_rows: prompts that were counted.
        longest: tokens of the longest one.
    """

    num_long: int
    num_rows: int
    longest: int


def long_prompts(taskset: TasksetConfig, *, model: Path, limit: int) -> LongPrompts | None:
    """Return how many first rows have prompts above `limit` tokens.

    Returns None if that is unknown. Counts the text of the messages without what the chat template adds, and the
    tokens of images, so more prompts than these may be too long.
    """
    file = model / "tokenizer.json"
    if not file.is_file() or not taskset.path or taskset.storage_type != "file":
        return None
    import tokenizers

    try:
        files = [
            file
            for place in places_of(taskset.path)
            if not is_remote(place)
            for file in data_files(place, split=taskset.split, subset_name=taskset.subset_name)
        ]
        rows = list(itertools.islice(itertools.chain.from_iterable(map(read_rows, files)), MAX_ROWS))
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001  the library has no error of its own; files that are wrong are told elsewhere
        return None
    good = [row for row in rows if isinstance(row, DataRow)]
    kind = prompt_type(taskset.format, {column for row in good for column in row.values})
    good = [row for row in good if not _is_bad(row.values, taskset.format, kind=kind)]
    texts = ["\n".join(_texts(row.values, taskset.format, kind=kind)) for row in good]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    sizes = ImageSizes.of_folder(model) if taskset.format.image_key else None
    seen = [0 if sizes is None else num_image_tokens(taskset.format, row, sizes) for row in good]
    lengths = [len(encoding.ids) + count for encoding, count in zip(encodings, seen, strict=True)]
    return LongPrompts(sum(length > limit for length in lengths), len(lengths), max(lengths, default=0))


def _is_bad(values: dict[str, Any], fmt: FormatConfig, *, kind: str) -> bool:
    """Return whether a row is left out, and cannot be tokenized."""
    return any(row_faults(fmt, decoded(fmt, values, kind=kind), kind=kind, has_prompt=True, needs_truth=False))


def _texts(values: dict[str, Any], fmt: FormatConfig, *, kind: str) -> Iterator[str]:
    """Yield the texts of a row's messages, or its system and user prompts."""
    row = decoded(fmt, values, kind=kind)
    mark = PLACEHOLDER if fmt.image_key else None
    prompt = row.get(fmt.messages_key if kind == "messages" else fmt.prompt_key)
    if isinstance(prompt, str):
        system = system_prompt_of(fmt, row)
        yield from (_without(mark, text) for text in (system, prompt) if isinstance(text, str))
    for message in prompt if isinstance(prompt, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else [{"text": content}]:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield _without(mark, part["text"])


def _without(mark: str | None, text: str) -> str:
    return text.replace(mark, "") if mark is not None else text
