"""Images of a conversation for one model, and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trinity.common.errors import DataError
from trinity.common.images.messages import without_images
from trinity.common.images.picture import ImageReader, Picture, expanded
from trinity.common.images.reading import UnreadableImage

Message = dict[str, Any]


@dataclass(frozen=True)
class PreparedImages:
    """Puts images into messages, and their tokens into those of a text.

    Attributes:
        reader: prepares images for the model.
        image_token: the token that stands for a part of an image.
    """

    reader: ImageReader
    image_token: int

    def split(self, messages: Sequence[Message]) -> tuple[list[Message], list[Picture]]:
        """Return the messages for a chat template, and their images.

        Raises:
            DataError: an image cannot be read or used (E4031).
        """
        try:
            written, images = without_images(messages)
        except UnreadableImage as error:
            raise DataError(f"an image cannot be used: {error}", code="E4031") from error
        return written, [self.reader.read(image) for image in images]

    def expanded(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """Return a prompt's tokens with those of its images."""
        return expanded(tokens, pictures, image_token=self.image_token)
