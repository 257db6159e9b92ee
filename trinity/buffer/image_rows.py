"""Images of rows, checked before a run and read for a task; without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity.buffer.checks import Fault
from trinity.buffer.rows import DataRow
from trinity.common.config.buffer import FormatConfig
from trinity.common.images.messages import PLACEHOLDER, num_placeholders, num_places
from trinity.common.images.reading import UnreadableImage, image_bytes, images_of, opened
from trinity.common.images.sizes import ImageSizes

MAX_IMAGES = 64
"""Largest number of images in a row."""


def image_fault(fmt: FormatConfig, row: DataRow, *, kind: str) -> Fault | None:
    """Return why the images of a row cannot be used (E4031, E4032), or None.

    Every image is decoded: a file that ends early is found before a run begins.

    Args:
        fmt: names of the columns.
        row: the row; the paths of its images are relative to the folder of its file.
        kind: `plaintext` or `messages`.
    """
    key = fmt.image_key
    if key is None:
        return None
    images = images_of(row.values.get(key))
    if len(images) > MAX_IMAGES:
        return Fault(key, f"has {len(images)} images, at most {MAX_IMAGES} are read", "E4031")
    for number, image in enumerate(images):
        try:
            opened(image_bytes(image, folder=_folder(row)))
        except UnreadableImage as error:
            return Fault(key, f"image {number}: {error}", "E4031")
    prompt = row.values.get(fmt.messages_key if kind == "messages" else fmt.prompt_key)
    count = num_places(prompt) if isinstance(prompt, list) else num_placeholders(prompt)
    if count not in (0, len(images)):
        return Fault(key, f"has {len(images)} images, and the prompt names {count} ({PLACEHOLDER})", "E4032")
    return None


def with_image_bytes(values: dict[str, Any], fmt: FormatConfig, row: DataRow) -> dict[str, Any]:
    """Return a row whose images are bytes, so that later code reads no files.

    Raises:
        UnreadableImage: a file has changed since the row was checked.
    """
    if fmt.image_key is None or fmt.image_key not in values:
        return values
    images = [image_bytes(image, folder=_folder(row)) for image in images_of(values[fmt.image_key])]
    return values | {fmt.image_key: images}


def num_image_tokens(fmt: FormatConfig, row: DataRow, sizes: ImageSizes) -> int:
    """Return how many tokens the readable images of a row take."""
    count = 0
    for image in images_of(row.values.get(str(fmt.image_key))):
        try:
            count += sizes.num_tokens(image_bytes(image, folder=_folder(row)))
        except UnreadableImage:
            continue
    return count


def _folder(row: DataRow) -> Path:
    place = Path(row.file)
    return place if place.is_dir() else place.parent
