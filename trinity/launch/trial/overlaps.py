"""Which data asks the same: what is trained on, and what is evaluated.

Compared is the question of a row, without system prompt, chat template and answer, which may differ between tasksets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from trinity.buffer.training_rows import decoded
from trinity.common.images.reading import UnreadableImage, image_bytes, images_of
from trinity.common.workflows.task import Task, read_option

if TYPE_CHECKING:
    from trinity.buffer.dataset_reader import DatasetReader


class Asking(Protocol):
    """Data that asks something."""

    name: str

    @property
    def asked(self) -> frozenset[bytes]:
        """Hashes of its questions."""
        ...


class Compared(Asking, Protocol):
    """Data that knows what it shares with other data, by their names."""

    overlaps: dict[str, int]


def note_overlaps(previews: Sequence[Compared]) -> None:
    """Note in each taskset of a stage what it shares with earlier ones."""
    for place, preview in enumerate(previews):
        note_shared(preview, previews[:place])


def note_shared(preview: Compared, others: Iterable[Asking]) -> None:
    """Note in a taskset how many of its questions others ask, too."""
    for other in others:
        number = len(preview.asked & other.asked)
        if number:
            preview.overlaps[other.name] = max(number, preview.overlaps.get(other.name, 0))


def task_digest(task: Task, images: Sequence[bytes] = ()) -> bytes:
    """Return a hash of what a task asks, with its images."""
    prompt = task.task_desc
    if prompt is None or read_option(task.format_args, "prompt_type") == "messages":
        prompt = task.column("messages_key")
    return _digest(task.raw_task if prompt is None else prompt, images)


def row_digests(reader: DatasetReader, row: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a hash of each question that a row of a dataset answers.

    A conversation has one before each message of the assistant. Text to continue has none.
    """
    fmt, kind = reader.config.format, reader.formatter.kind
    if reader.schema == "cpt":
        return
    row, images = decoded(fmt, row, kind=kind), list(_images(row.get(fmt.image_key) if fmt.image_key else None))
    if kind != "messages":
        yield _digest(row.get(fmt.prompt_key), images)
        return
    for key in (fmt.messages_key, fmt.chosen_key):
        given = row.get(key)
        messages = given if isinstance(given, list) else []
        for place, message in enumerate(messages):
            if isinstance(message, Mapping) and message.get("role") == "assistant" and place:
                yield _digest(messages[:place], images)
    if reader.schema == "dpo" and isinstance(row.get(fmt.messages_key), list):
        yield _digest(row[fmt.messages_key], images)


def _images(value: Any) -> Iterator[bytes]:
    for image in images_of(value):
        try:
            yield image_bytes(image)
        except UnreadableImage:  # of a file beside the data: such a row is equal to none
            yield b""


def _digest(prompt: Any, images: Sequence[bytes]) -> bytes:
    if isinstance(prompt, list):
        said = [(each.get("role"), each.get("content")) for each in prompt if isinstance(each, Mapping)]
        said = [(role, content) for role, content in said if role != "system"]
    else:
        said = [("user", prompt)]
    hashed = xxhash.xxh3_128(repr(said).encode("utf-8", "replace"))
    for image in images:
        hashed.update(xxhash.xxh3_128_digest(image))
    return hashed.digest()
