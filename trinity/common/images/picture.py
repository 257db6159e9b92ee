"""Images as a vision model takes them: patches of pixels, and tokens.

Dimension key: M = patches of an image, C = numbers of a patch, T = tokens of a sequence, I = images.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trinity.common.errors import DataError, EnvironmentProblem
from trinity.common.images.reading import UnreadableImage, opened

INDEX_BITS = 24
"""Bits of a token's place in its image; the rest of a token's number is its image's."""
INPUTS = ("image_bytes", "image_sizes", "image_grid_thw", "image_places")
CACHE_BYTES = 256 * 1024 * 1024
"""Most memory of prepared images, in bytes."""


@dataclass(frozen=True, eq=False)
class Picture:
    """An image as a vision model takes it.

    Attributes:
        data: the encoded image.
        pixels: its patches, float32.
        grid: patches in time (1), height and width.
        num_tokens: tokens that stand for it in a sequence.
        number: its identity: a hash of the encoded image and the grid.
    """

    data: bytes
    pixels: Float[Tensor, "M C"]
    grid: tuple[int, int, int]
    num_tokens: int
    number: int

    def tokens(self) -> list[int]:
        """Return a negative number for each token: equal for equal images alone."""
        return [-1 - (self.number << INDEX_BITS | index) for index in range(self.num_tokens)]


def image_number(token: int) -> tuple[int, int]:
    """Return the image of a negative token, and the token's place in it."""
    value = -1 - token
    return value >> INDEX_BITS, value & ((1 << INDEX_BITS) - 1)


class ImageReader:
    """Prepares images for a model, as its `preprocessor_config.json` says.

    Prepared images are kept, the last used up to `CACHE_BYTES`. Safe for several threads.

    Args:
        folder: the model's folder.
        merge_size: patches of a token, in each direction.
        max_bytes: memory of the images that are kept; 0: none are.

    Raises:
        EnvironmentProblem: the folder has no image processor that works without torchvision (E3108).
    """

    def __init__(self, folder: str | Path, *, merge_size: int, max_bytes: int = CACHE_BYTES) -> None:
        from transformers import Qwen2VLImageProcessorPil

        try:
            self._processor: Any = Qwen2VLImageProcessorPil.from_pretrained(str(folder))
        except (OSError, ValueError, TypeError) as error:
            raise EnvironmentProblem(
                f"{folder} has no image processor: {str(error).splitlines()[0]}; copy the preprocessor_config.json of "
                "the model that it was made from",
                code="E3108",
            ) from error
        if self._processor.merge_size != merge_size:
            raise EnvironmentProblem(
                f"{folder}: merge_size is {self._processor.merge_size} in preprocessor_config.json, and the model's "
                f"spatial_merge_size is {merge_size}; copy the file of the model that it was made from",
                code="E3108",
            )
        self.max_bytes = max_bytes
        self.totals = {"image_hits": 0.0, "image_misses": 0.0}
        self._kept: OrderedDict[bytes, Picture] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def read(self, data: bytes) -> Picture:
        """Return an encoded image as the model takes it.

        Raises:
            DataError: it cannot be read, or has a form that the model does not take (E4031).
        """
        key = hashlib.sha256(data).digest()
        with self._lock:
            known = self._kept.get(key)
            self.totals["image_misses" if known is None else "image_hits"] += 1
            if known is not None:
                self._kept.move_to_end(key)
                return known
        made = self._made(data, key)
        with self._lock:
            self._keep(key, made)
        return made

    def _made(self, data: bytes, key: bytes) -> Picture:
        try:
            image = opened(data)
            found = self._processor(images=[image], return_tensors="pt")
        except (UnreadableImage, ValueError) as error:
            raise DataError(f"an image cannot be used: {error}", code="E4031") from error
        grid = tuple(int(size) for size in found["image_grid_thw"][0])
        identity = hashlib.sha256(key + repr(grid).encode()).digest()
        num_tokens = int(np.prod(grid)) // self._processor.merge_size**2
        pixels = found["pixel_values"].float()
        return Picture(data, pixels, (grid[0], grid[1], grid[2]), num_tokens, int.from_bytes(identity, "big"))

    def _keep(self, key: bytes, picture: Picture) -> None:
        size = picture.pixels.numel() * 4
        if key in self._kept or size > self.max_bytes:
            return
        self._kept[key] = picture
        self._num_bytes += size
        while self._num_bytes > self.max_bytes:
            _, old = self._kept.popitem(last=False)
            self._num_bytes -= old.pixels.numel() * 4


@dataclass(frozen=True)
class ImagePlace:
    """The tokens of an image in a sequence.

    Attributes:
        start: index of the first one.
        count: number of tokens.
        grid: patches of the image in time, height and width.
    """

    start: int
    count: int
    grid: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Tokens in time, height and width."""
        time, height, width = self.grid
        merge = round((time * height * width / self.count) ** 0.5)
        return time, height // merge, width // merge


def expanded(tokens: Sequence[int], pictures: Sequence[Picture], *, image_token: int) -> list[int]:
    """Return tokens with those of a picture for each `image_token`.

    Raises:
        DataError: another number of places than of pictures (E4032).
    """
    count = sum(token == image_token for token in tokens)
    if count != len(pictures):
        raise DataError(
            f"a prompt with {len(pictures)} images has {count} image tokens: the chat template must write one for each "
            "image, and a text none",
            code="E4032",
        )
    left = iter(pictures)
    made: list[int] = []
    for token in tokens:
        made += next(left).tokens() if token == image_token else [token]
    return made


def plain(tokens: Iterable[int], image_token: int) -> list[int]:
    """Return tokens with `image_token` in the place of those of pictures."""
    return [image_token if token < 0 else token for token in tokens]


def shortened(tokens: Iterable[int], image_token: int) -> list[int]:
    """Return tokens with one `image_token` for each picture, as a text has it."""
    return [image_token if token < 0 else token for token in tokens if token >= 0 or image_number(token)[1] == 0]


def places_of(tokens: Sequence[int], pictures: Iterable[Picture]) -> list[ImagePlace]:
    """Return where pictures stand in tokens that `expanded` returned."""
    known = {picture.number: picture for picture in pictures}
    places = []
    for at, token in enumerate(tokens):
        number, index = image_number(token) if token < 0 else (0, 1)
        if index == 0:
            places.append(ImagePlace(at, known[number].num_tokens, known[number].grid))
    return places


def rotary_positions(length: int, places: Iterable[ImagePlace]) -> Int[Tensor, "3 T"]:
    """Return the positions in time, height and width of each token.

    Tokens of a text have three equal positions, one more than the largest before. Those of an image begin there and
    count along its grid (Qwen2-VL, arXiv:2409.12191, section 2.1).
    """
    parts, at, position = [], 0, 0
    for place in places:
        text = place.start - at
        parts.append(torch.arange(position, position + text).expand(3, -1))
        position += text
        axes = torch.meshgrid(*(torch.arange(size) for size in place.shape), indexing="ij")
        parts.append(torch.stack([axis.reshape(-1) for axis in axes]) + position)
        position += max(place.shape)
        at = place.start + place.count
    parts.append(torch.arange(position, position + length - at).expand(3, -1))
    return torch.cat(parts, 1)


def as_inputs(tokens: Sequence[int], pictures: Sequence[Picture]) -> dict[str, Tensor]:
    """Return `multi_modal_inputs` of a prompt that `expanded` returned.

    These are the encoded images one after another, their sizes in bytes, their grids, and their places (first token and
    number of tokens): the trainer makes the same pixels of the same bytes.
    """
    places = places_of(tokens, pictures)
    joined = np.frombuffer(b"".join(picture.data for picture in pictures), dtype=np.uint8)
    return {
        "image_bytes": torch.from_numpy(joined.copy()),
        "image_sizes": torch.tensor([len(picture.data) for picture in pictures]),
        "image_grid_thw": torch.tensor([list(place.grid) for place in places]),
        "image_places": torch.tensor([[place.start, place.count] for place in places]),
    }


def encoded_images(inputs: Mapping[str, Tensor]) -> list[bytes]:
    """Return the encoded images of `multi_modal_inputs`; none of another form."""
    if not {"image_bytes", "image_sizes"} <= inputs.keys():
        return []
    sizes = [int(size) for size in inputs["image_sizes"]]
    return [bytes(part.numpy()) for part in torch.split(inputs["image_bytes"], sizes)]


def of_inputs(inputs: Mapping[str, Tensor], *, length: int, name: str) -> list[tuple[bytes, ImagePlace]]:
    """Return encoded images and places of `multi_modal_inputs`.

    Args:
        inputs: what `as_inputs` returned.
        length: tokens of the prompt.
        name: of the experience, for messages.

    Raises:
        DataError: another form, or parts that do not fit (E4033).
    """
    if set(inputs) != set(INPUTS):
        raise DataError(
            f"experience {name}: multi_modal_inputs must hold {', '.join(INPUTS)}, got {', '.join(sorted(inputs))}; "
            "use those of an experience that model.chat returned",
            code="E4033",
        )
    sizes, grids, places = (inputs[key].tolist() for key in INPUTS[1:])
    data = inputs["image_bytes"].numpy().tobytes()
    found, at, end = [], 0, 0
    is_fitting = len(sizes) == len(grids) == len(places) and sum(sizes) == len(data)
    for size, grid, (start, count) in zip(sizes, grids, places, strict=False):
        is_fitting &= end <= start and count > 0 and start + count <= length
        found.append((data[at : at + size], ImagePlace(start, count, (grid[0], grid[1], grid[2]))))
        at, end = at + size, start + count
    if not is_fitting:
        raise DataError(
            f"experience {name}: the parts of multi_modal_inputs do not fit: {len(sizes)} sizes, {len(grids)} grids, "
            f"places {places} in a prompt of {length} tokens",
            code="E4033",
        )
    return found
