"""The images of a training batch.

Each distinct image is stored once. A part is what one token of a row stands for in an image; the parts of all images
are numbered, and in the rows the token of part n is -1 - n. Rows with equal tokens thus have equal images, so that code
that computes common prefixes once need not treat images separately.

Dimension key: B = rows, S = longest sequence, T = tokens of a row, N = packed tokens, n = those of images,
F = parts of the images that are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from trinity.common.experience import Experience
from trinity.common.images.picture import ImagePlace, of_inputs, rotary_positions


@dataclass(frozen=True)
class BatchImage:
    """An image of a batch.

    Attributes:
        data: the encoded image.
        grid: its patches in time, height and width.
        first: number of its first part.
        count: number of its parts, which is that of its tokens in a row.
    """

    data: bytes
    grid: tuple[int, int, int]
    first: int
    count: int


@dataclass(frozen=True)
class NumberedRows:
    """The tokens [T] of each row, with numbers for images.

    Attributes:
        tokens: of each row; negative for parts of images.
        images: of all rows.
        rotary: see `TrainBatch`.
    """

    tokens: list[Tensor]
    images: tuple[BatchImage, ...]
    rotary: Int[Tensor, "3 B S"] | None


def number_images(experiences: Sequence[Experience]) -> NumberedRows:
    """Return the rows of experiences, with the parts of their images numbered.

    Raises:
        DataError: `multi_modal_inputs` is not what `model.chat` sets, or its parts do not fit (E4033).
    """
    rows = [exp.tokens for exp in experiences]
    if not any(exp.multi_modal_inputs for exp in experiences):
        return NumberedRows(rows, (), None)
    known: dict[tuple[bytes, tuple[int, int, int], int], BatchImage] = {}
    rotary = torch.zeros(3, len(rows), max(map(len, rows)), dtype=torch.long)
    numbered, at = [], 0
    for row, exp in enumerate(experiences):
        inputs, tokens, places = exp.multi_modal_inputs, exp.tokens.clone(), list[ImagePlace]()
        for data, place in of_inputs(inputs, length=exp.prompt_length, name=exp.eid.uid) if inputs else ():
            key = data, place.grid, place.count
            if key not in known:
                known[key] = BatchImage(data, place.grid, at, place.count)
                at += place.count
            tokens[place.start : place.start + place.count] = -1 - known[key].first - torch.arange(place.count)
            places.append(place)
        numbered.append(tokens)
        rotary[:, row, : len(tokens)] = rotary_positions(len(tokens), places)
    return NumberedRows(numbered, tuple(known.values()), rotary)


@dataclass(frozen=True)
class PackedImages:
    """The images of a packed list of tokens.

    Attributes:
        images: those that are computed; their `first` numbers the parts of these images only.
        places: index of each image token in the list.
        parts: number of the part that each image token stands for.
    """

    images: tuple[BatchImage, ...]
    places: Int[Tensor, "n"]
    parts: Int[Tensor, "n"]

    def to(self, device: torch.device) -> PackedImages:
        """Return the images with their tensors on `device`."""
        return PackedImages(self.images, self.places.to(device), self.parts.to(device))


def packed_images(
    tokens: Int[Tensor, "N"], images: Sequence[BatchImage]
) -> tuple[Int[Tensor, "N"], PackedImages | None]:
    """Return tokens with 0 for images, and the images, None if there are none."""
    places = torch.nonzero(tokens < 0).squeeze(-1)
    if not len(places):
        return tokens, None
    numbers = -1 - tokens[places]
    firsts = torch.tensor([image.first for image in images])
    image = torch.searchsorted(firsts, numbers, right=True) - 1
    used = torch.unique(image)
    counts = torch.tensor([images[number].count for number in used.tolist()])
    begins = torch.cumsum(counts, 0) - counts
    parts = begins[torch.searchsorted(used, image)] + numbers - firsts[image]
    chosen = tuple(
        replace(images[number], first=first) for number, first in zip(used.tolist(), begins.tolist(), strict=True)
    )
    return tokens.clamp(min=0), PackedImages(chosen, places, parts)
