"""The images of rows that are trained on, from a row to tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity.common.errors import DataError
from trinity.common.images.messages import MisplacedImages, has_images, with_images
from trinity.common.images.picture import ImageReader
from trinity.common.images.prepared import PreparedImages
from trinity.common.images.reading import images_of
from trinity.common.models.families import VISION

Message = dict[str, Any]


def open_images(folder: str | Path) -> PreparedImages | None:
    """Return what prepares images for the model of a folder.

    None if it reads none here.

    Raises:
        EnvironmentProblem: the folder has no image processor (E3108).
    """
    from transformers import AutoConfig  # seconds, which an explorer without such rows is spared

    try:
        config: Any = AutoConfig.from_pretrained(str(folder))
    except (OSError, ValueError):
        return None
    if config.model_type not in VISION:
        return None
    reader = ImageReader(folder, merge_size=int(config.vision_config.spatial_merge_size), max_bytes=0)
    return PreparedImages(reader, int(config.image_token_id))


def with_row_images(messages: Sequence[Message], values: Mapping[str, Any], key: str | None) -> list[Message]:
    """Return the messages of a row with the images of its column `key`.

    Raises:
        DataError: another number of places than of images (E4032).
    """
    if key is None:
        return list(messages)
    try:
        return with_images(messages, images_of(values.get(key)))
    except MisplacedImages as error:
        raise DataError(f"{key}: the row {error}", code="E4032") from error


def answers_have_images(messages: Sequence[Message]) -> bool:
    """Return whether an image stands in or after the first answer."""
    first = next((i for i, message in enumerate(messages) if i and message["role"] == "assistant"), len(messages))
    return has_images(messages[first:])
