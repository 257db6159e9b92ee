"""The engine's interface to a model: prefill, decoding step, logprobs.

Dimension key: B = rows of a step, G = prompts, P = prompt tokens, T = tokens of a sequence, V = vocabulary,
E = prompts that end in a pass, N = keys and values of all layers, H = key-value heads, D = head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trinity.common.images.picture import Picture
from trinity.engine.torch.pieces import Piece, Sight


class Prompts(Protocol):
    """A decoder's cache of prompts after their prefill."""

    def row(self, index: int, length: int) -> Prompts:
        """Return the cache of one prompt of `length` tokens."""


class SlotStates(Protocol):
    """A decoder's cache of the rows in slots; see `KVCache`."""

    def reserve(self, rows: int, width: int) -> None:
        """Allocate at least `rows` slots of `width` positions."""

    def write(self, slots: Sequence[int], prefix: Any) -> None:
        """Copy a prompt into each of `slots`; the same decoder made `prefix`."""

    def share(self, slots: Sequence[int], prefix: Any) -> None:
        """Let `slots` read one prompt, if the decoder can share prompts."""

    def release(self, slots: Sequence[int]) -> None:
        """Release the prompts that `slots` share."""

    def move(self, sources: Sequence[int], targets: Sequence[int], *, width: int) -> None:
        """Move the first `width` positions of slots `sources` to `targets`."""

    def clear(self) -> None:
        """Free the memory."""


@runtime_checkable
class Decoder(Protocol):
    """A causal language model with its own copy of the weights.

    Attributes:
        vocab_size: V, the width of the logits.
        weight_bytes: memory of the weights, in bytes.
        kv_bytes_per_token: memory of one cached position, in bytes; 0 if unknown.
        device: device of the weights.
        kind: `fast`, `hf` or `hf, row by row`, for the log.
        can_share_prompts: a step may attend to prompts that several slots share; their slots hold what follows.
    """

    vocab_size: int
    weight_bytes: int
    kv_bytes_per_token: int
    device: torch.device
    kind: str
    can_share_prompts: bool

    def new_cache(self, num_slots: int, max_length: int, *, is_fixed: bool) -> SlotStates:
        """Return the cache of `num_slots` rows of up to `max_length` tokens.

        See `KVCache`.
        """

    def prefill(self, tokens: Int[Tensor, "G P"], last: Int[Tensor, "G"]) -> tuple[Float[Tensor, "G V"], Prompts]:
        """Return float32 logits after `last` of right-padded prompts, and a cache."""

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: Any, width: int
    ) -> Float[Tensor, "B V"]:
        """Return the float32 logits after `tokens` in slots 0 to B - 1.

        The tokens are at `positions`. Their keys and values are written to the cache. They attend to the first `width`
        positions of their slots and to the prompts that the slots share.
        """

    def sequence_logprobs(self, tokens: Int[Tensor, "T"], temperature: float) -> Float[Tensor, "T-1"]:
        """Return the float32 logprob of each token but the first.

            logprobs[t] = log_softmax(logits after tokens[..t] / temperature)[tokens[t + 1]]

        The sequence is scored in one forward pass.
        """

    def targets(self) -> Mapping[str, Tensor]:
        """Return the weights by Hugging Face name, as writable views.

        The views are valid until the next pass, in which a decoder may change the layout of its weights.
        """

    def optional_names(self) -> frozenset[str]:
        """Return further names that a state dict may hold, such as tied copies."""


@runtime_checkable
class ExtendingDecoder(Decoder, Protocol):
    """A decoder that computes what follows the cached beginning of a prompt."""

    def new_states(self, length: int) -> Float[Tensor, "N H P D"]:
        """Return uninitialized memory for keys and values of `length` tokens."""

    def extend(
        self, pieces: Sequence[Piece], *, num_tokens: int | None = None, num_ends: int | None = None
    ) -> Float[Tensor, "E V"]:
        """Compute pieces in one pass; return float32 logits after each `last`.

        Pieces of one prompt are in the order of their positions. Their keys and values are written to their states.

        Args:
            pieces: the pieces.
            num_tokens: tokens of the pass, filled up with padding; None: those of the pieces.
            num_ends: rows of the logits' product, filled up; None: as many as pieces have `last`.
        """


@runtime_checkable
class SeeingDecoder(ExtendingDecoder, Protocol):
    """A decoder that reads images.

    Attributes:
        image_token: the token that stands for a part of an image in a prompt.
        merge_size: image patches of one token, in each direction.
    """

    image_token: int
    merge_size: int

    def look(self, prompt: Sequence[int], pictures: Mapping[int, Picture], *, start: int) -> Sight:
        """Return inputs and positions of the tokens of a prompt from `start` on.

        Args:
            prompt: tokens, negative ones for images (`Picture.tokens`).
            pictures: the images by their number.
            start: the tokens before it are in the cache.
        """
