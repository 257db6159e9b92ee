"""Preparation of the images in rows that are trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.errors import DataError
from trinity.common.images.messages import MisplacedImages, has_images, with_images
from trinity.common.images.reading import images_of
from trinity.common.models.families import VISION

if TYPE_CHECKING:
    from trinity.common.images.prepared import PreparedImages

Message = dict[str, Any]


def open_images(folder: str | Path) -> PreparedImages | None:
    """Return what prepares images for the model in a folder, or None.

    None means that the model reads no images here.

    Raises:
        EnvironmentProblem: the folder has no image processor (E3108).
    """
    if _stated_type(Path(folder)) not in (None, *VISION):
        return None
    from transformers import AutoConfig  # imported only if needed: they take seconds

    from trinity.common.images.picture import ImageReader
    from trinity.common.images.prepared import PreparedImages

    try:
        config: Any = AutoConfig.from_pretrained(str(folder))
    except (OSError, ValueError):
        return None
    if config.model_type not in VISION:
        return None
    reader = ImageReader(folder, merge_size=int(config.vision_config.spatial_merge_size), max_bytes=0)
    return PreparedImages(reader, int(config.image_token_id))


def _stated_type(folder: Path) -> str | None:
    """Return the model type in a folder's `config.json`; None if unreadable."""
    try:
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
    return stated if isinstance(stated, str) else None


def with_row_images(messages: Sequence[Message], values: Mapping[str, Any], key: str | None) -> list[Message]:
    """Return the messages of a row with the images of its column `key`.

    Raises:
        DataError: the number of places for images differs from that of the images (E4032).
    """
    if key is None:
        return list(messages)
    try:
        return with_images(messages, images_of(values.get(key)))
    except MisplacedImages as error:
        raise DataError(f"{key}: the row {error}", code="E4032") from error


def answers_have_images(messages: Sequence[Message]) -> bool:
    """Return whether an image is in or after the first response."""
    first = next((i for i, message in enumerate(messages) if i and message["role"] == "assistant"), len(messages))
    return has_images(messages[first:])
