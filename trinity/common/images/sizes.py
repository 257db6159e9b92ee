"""How many tokens an image is, from its size; without torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from trinity.common.constants import PROCESSOR
from trinity.common.images.reading import UnreadableImage, size_of


@dataclass(frozen=True)
class ImageSizes:
    """The sizes to which a model's images are brought.

    See Qwen2-VL, arXiv:2409.12191, section 2.1.

    Attributes:
        edge: pixels of a token, in each direction.
        min_pixels: fewest pixels of an image.
        max_pixels: most pixels of an image.
    """

    edge: int = 28
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    @classmethod
    def of_folder(cls, folder: Path) -> ImageSizes | None:
        """Return those of a model's folder; None without a processor."""
        try:
            given = json.loads((folder / PROCESSOR).read_text(encoding="utf-8"))
            size = given.get("size") or {}
            low, high = given.get("min_pixels"), given.get("max_pixels")
            return cls(
                int(given.get("patch_size", 14)) * int(given.get("merge_size", 2)),
                int(size.get("shortest_edge", cls.min_pixels) if low is None else low),
                int(size.get("longest_edge", cls.max_pixels) if high is None else high),
            )
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def num_tokens(self, data: bytes) -> int:
        """Return the tokens of an encoded image, 0 of one that cannot be read."""
        try:
            width, height = size_of(data)
        except UnreadableImage:
            return 0
        return self.num_tokens_of(width, height)

    def num_tokens_of(self, width: int, height: int) -> int:
        """Return the tokens of an image of so many pixels."""
        # Python rounds halves to even, and so does the image processor.
        across, down = round(width / self.edge), round(height / self.edge)
        pixels = across * down * self.edge**2
        if pixels > self.max_pixels:
            scale = math.sqrt(width * height / self.max_pixels)
            across, down = (max(1, math.floor(length / scale / self.edge)) for length in (width, height))
        elif pixels < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            across, down = (math.ceil(length * scale / self.edge) for length in (width, height))
        return across * down
