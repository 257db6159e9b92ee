"""The fast path of vision-language models: Qwen2.5-VL.

The language model is our own forward pass, with three rotary positions a token. The vision model is Hugging Face's, one
image a call, so that the bits of an image do not depend on others.

Dimension key: T = tokens of a pass, P = tokens of a prompt, D = head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel

from trinity.common.images.picture import Picture, image_number, places_of, plain, rotary_positions
from trinity.common.models.rotary import rotary_axes
from trinity.common.models.vision import language_config
from trinity.engine.torch.fast_decoder import FastDecoder
from trinity.engine.torch.pieces import Piece, Sight
from trinity.engine.torch.transfer import upload


class VisionDecoder(FastDecoder):
    """Qwen2.5-VL; see `SeeingDecoder`.

    Args:
        config: of the whole model.
        dtype: data type of all weights.
        device: device of all weights.
        max_model_len: tokens of the longest row.
        is_exact: see `FastDecoder`.
    """

    root = "model.language_model"

    def __init__(
        self, config: Any, *, dtype: torch.dtype, device: torch.device, max_model_len: int, is_exact: bool = True
    ) -> None:
        text = language_config(config)
        self.visual = AutoModel.from_config(config.vision_config, dtype=dtype).to(device).eval().requires_grad_(False)
        super().__init__(text, dtype=dtype, device=device, max_model_len=max_model_len, is_exact=is_exact)
        self.image_token = int(config.image_token_id)
        self.merge_size = int(config.vision_config.spatial_merge_size)
        self.axes = rotary_axes(text).to(device)

    def targets(self) -> Mapping[str, Tensor]:
        """Return the weights by Hugging Face name; see `Decoder`."""
        own = {f"model.visual.{name}": tensor for name, tensor in self.visual.state_dict().items()}
        return dict(super().targets()) | own

    def look(self, prompt: Sequence[int], pictures: Mapping[int, Picture], *, start: int) -> Sight:
        """Return inputs and positions from `start` on; see `SeeingDecoder`."""
        numbers = {image_number(token)[0] for token in prompt if token < 0}
        positions = rotary_positions(len(prompt), places_of(prompt, [pictures[number] for number in numbers]))
        rest = prompt[start:]
        inputs = self.embed[upload(plain(rest, self.image_token), self.device)]
        features: dict[int, Tensor] = {}
        for place, token in enumerate(rest):
            if token < 0:
                number, index = image_number(token)
                if number not in features:
                    features[number] = self._features(pictures[number])
                inputs[place] = features[number][index]
        shift = int(positions.max()) + 1 - len(prompt)
        return Sight(inputs, positions.to(self.device), start, shift)

    @torch.no_grad()
    def _features(self, picture: Picture) -> Tensor:
        pixels = picture.pixels.to(self.device, self.dtype)
        grid = torch.tensor([picture.grid], device=self.device)
        features: Tensor = self.visual(pixels, grid_thw=grid, return_dict=True).pooler_output
        return features

    def _inputs(self, pieces: Sequence[Piece], *, padding: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        hidden, cos, sin = super()._inputs(pieces, padding=padding)
        offset = 0
        for piece in pieces:
            if piece.sight is not None:
                sight, size = piece.sight, min(piece.end, piece.sight.positions.shape[1]) - piece.start
                rows = slice(offset, offset + size)
                hidden[rows] = sight.inputs[piece.start - sight.start :][:size]
                place = sight.positions[:, piece.start : piece.start + size][self.axes].T
                cos[rows, 0], sin[rows, 0] = self.cos.gather(0, place), self.sin.gather(0, place)
            offset += len(piece.tokens)
        return hidden, cos, sin
