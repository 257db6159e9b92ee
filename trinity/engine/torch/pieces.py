"""Pieces of prompts that continue what is cached, and their attention.

A pass computes pieces of several prompts as one list of tokens. Only attention knows which piece a token belongs to:
the tokens of a piece attend to all of their prompt before, whether another pass, another piece of this pass, or the
prefix cache has computed it.

Dimension key: N = keys and values of all layers, H = key-value heads, D = head size, P = prompt tokens,
Q = query heads, T = tokens of a piece, W = keys, M = queries of a key head: T times Q / H.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from trinity.engine.torch.attention import NumberTypes, attend, hidden_after
from trinity.engine.torch.transfer import upload


@dataclass(frozen=True, eq=False)
class Sight:
    """What a prompt with images is computed from; see `SeeingDecoder.look`.

    Attributes:
        inputs: vectors [P - start, d] of the tokens from `start` on: embeddings, or features of an image at its tokens.
        positions: rotary positions of all tokens in time, height and width, [3, P].
        start: the first token of `inputs`.
        shift: rotary position of the token after the prompt, minus its index.
    """

    inputs: Tensor
    positions: Tensor
    start: int
    shift: int


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive tokens of a prompt, to be computed in one pass.

    The keys and values of the tokens before them are known, or computed in the same pass.

    Attributes:
        tokens: the tokens.
        start: position of the first one.
        states: keys, then values of all layers of the prompt, [N, H, P, D], filled up to `start` when the piece is
            computed; the pass fills what follows.
        last: position of the prompt's last token, if it is in this piece and its logits are wanted; tokens after it are
            padding.
        sight: what the prompt is computed from, if it has images; the values in `tokens` then have no influence.
    """

    tokens: Sequence[int]
    start: int
    states: Tensor
    last: int | None = None
    sight: Sight | None = None

    @property
    def end(self) -> int:
        """Position after the last token, padding included."""
        return self.start + len(self.tokens)

    def write(self, layer: int, keys: Float[Tensor, "T H D"], values: Float[Tensor, "T H D"]) -> None:
        """Add the keys and values of a layer to the prompt's."""
        self.states[layer][:, self.start : self.end] = keys.transpose(0, 1)
        self._values(layer)[:, self.start : self.end] = values.transpose(0, 1)

    def attended(self, layer: int, queries: Float[Tensor, "T Q D"], biases: CausalBiases) -> Float[Tensor, "T Q D"]:
        """Return causal attention of the piece's tokens to the prompt up to each.

            out = softmax(queries keys^T / sqrt(D), over keys up to the query's position) values

        On a CPU, up to `EXACT_KEYS` keys are multiplied in the wide data type, more in the narrow one. Shapes and
        data types depend on the piece alone, so its bits do not depend on the rest of the pass.
        """
        length, _, size = queries.shape
        heads = self.states.shape[1]
        grouped = queries.view(length, heads, -1, size).permute(1, 2, 0, 3).reshape(1, heads, -1, size)
        types = biases.types.for_keys(self.end)
        keys, values = self._past(layer)
        out = attend(grouped, keys, values, bias=biases.of(length, types), types=types).out[0]
        return out.view(heads, -1, length, size).permute(2, 0, 1, 3).reshape(length, -1, size)

    def attended_last(self, layer: int, query: Float[Tensor, "Q D"], types: NumberTypes) -> Float[Tensor, "Q D"]:
        """Return attention of the prompt's last token to the whole prompt."""
        assert self.last is not None, "the piece ends a prompt"
        grouped = query.view(1, self.states.shape[1], -1, query.shape[-1])
        bias = hidden_after(upload([self.last + 1], query.device), self.end, types.wide)
        keys, values = self._past(layer)
        return attend(grouped, keys, values, bias=bias, types=types).out.reshape(query.shape)

    def _past(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [1, H, W, D] of the prompt up to the piece's end."""
        return self.states[layer][None, :, : self.end], self._values(layer)[None, :, : self.end]

    def _values(self, layer: int) -> Tensor:
        return self.states[len(self.states) // 2 + layer]


class CausalBiases:
    """The biases of pieces that hide later tokens, by length.

    Args:
        num_queries: query heads of a key head.
        types: data types of attention.
        device: device of the biases.
    """

    def __init__(self, num_queries: int, types: NumberTypes, device: torch.device) -> None:
        self.num_queries = num_queries
        self.types = types
        self.device = device
        self._made: dict[tuple[int, torch.dtype], Tensor] = {}

    def of(self, length: int, types: NumberTypes) -> Float[Tensor, "1 1 M T"]:
        """Return a piece's bias for its own keys; those before are visible."""
        key = (length, types.wide)
        if key not in self._made:
            visible = torch.arange(1, length + 1, device=self.device)
            bias = hidden_after(visible, length, types.wide).view(1, 1, length, length)
            self._made[key] = bias.repeat(1, 1, self.num_queries, 1)
        return self._made[key]
