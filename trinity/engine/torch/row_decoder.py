"""The slow fallback: one Hugging Face cache and one call per row.

The cache may be of any type.

Dimension key: B = rows of a step, G = prompts, P = prompt tokens, V = vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from trinity.engine.torch.hf_decoder import HFModel
from trinity.engine.torch.slot_attention import use_own_attention

_STATES = ("past_key_values", "cache_params", "state")
"""Names under which transformers' models take and return their state between tokens."""


@dataclass(frozen=True)
class RowPrefix:
    """The model's state of each prompt after its prefill."""

    states: list[Any]

    def row(self, index: int, length: int) -> RowPrefix:
        """Return the state of one prompt, which knows its own length."""
        return RowPrefix([self.states[index]])


class RowCache:
    """The model's state of each row; see `KVCache` for the interface."""

    def __init__(self, num_slots: int) -> None:
        self.states: list[Any] = [None] * num_slots

    def reserve(self, rows: int, width: int) -> None:
        """Do nothing: rows grow by themselves."""

    def write(self, slots: Sequence[int], prefix: RowPrefix) -> None:
        """Copy the state of a prompt into each of `slots`."""
        for slot in slots:
            self.states[slot] = copy.deepcopy(prefix.states[0])

    def share(self, slots: Sequence[int], prefix: RowPrefix) -> None:
        """Do as `write`: states are not shared."""
        self.write(slots, prefix)

    def release(self, slots: Sequence[int]) -> None:
        """Drop the states of `slots`."""
        for slot in slots:
            self.states[slot] = None

    def move(self, sources: Sequence[int], targets: Sequence[int], *, width: int) -> None:
        """Move the states of `sources` to `targets`."""
        for source, target in zip(sources, targets, strict=True):
            self.states[target], self.states[source] = self.states[source], None

    def clear(self) -> None:
        """Drop all states."""
        self.states = [None] * len(self.states)


class RowDecoder(HFModel):
    """A model with its own kind of state or of attention; see `Decoder`.

    Args:
        model: the model.
        max_model_len: tokens of the longest row.

    Raises:
        EngineError: it keeps no state between tokens that a call accepts (E5604).
    """

    kind = "hf, row by row"

    def __init__(self, model: PreTrainedModel, *, max_model_len: int) -> None:
        super().__init__(model)
        # A family may mistake an unknown attention for a kernel that does more than attention.
        use_own_attention(model)
        self._check_causal()
        self._gives_positions = self._counts_from_zero()
        self._name = next((name for name in _STATES if name in self._accepted), None)
        self.vocab_size, self.kv_bytes_per_token = 0, 0
        self._probe(max_model_len)

    @torch.no_grad()
    def _probe(self, max_model_len: int) -> None:
        """Measure vocabulary and memory, and verify that a row can continue."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        logits, state = self._call(token, None)
        first = state_bytes(state)
        self._call(token, state, position=1)
        growth = max(state_bytes(state) - first, 0)
        self.vocab_size = logits.shape[-1]
        self.kv_bytes_per_token = max(1, growth + -(-(first - growth) // max_model_len))

    def new_cache(self, num_slots: int, max_length: int, *, is_fixed: bool) -> RowCache:
        """Return the states of the rows; see `Decoder`."""
        return RowCache(num_slots)

    def _call(self, tokens: Tensor, state: Any, *, position: int = 0) -> tuple[Tensor, Any]:
        """Return logits [V] after tokens [1, P] from `position` on, and the state."""
        name = self._name
        if name is None:
            raise self._refusal("takes nothing that it kept of the tokens before")
        given = {} if state is None else {name: state}
        if state is not None and self._gives_positions:
            given["position_ids"] = torch.tensor([[position]], device=self.device)
        output = self.model(input_ids=tokens, use_cache=True, **given)
        kept = output.get(name)
        if kept is None:
            raise self._refusal("keeps nothing of its tokens")
        return output.logits[0, -1].float(), kept

    def prefill(self, tokens: Int[Tensor, "G P"], last: Int[Tensor, "G"]) -> tuple[Float[Tensor, "G V"], RowPrefix]:
        """Return the logits after `last` of each prompt, and the states."""
        prompts = [tuple(row[: end + 1]) for row, end in zip(tokens.tolist(), last.tolist(), strict=True)]
        # Each prompt once: the padding rows of a prefill are all the same.
        done = {prompt: self._call(torch.tensor([prompt], device=self.device), None) for prompt in set(prompts)}
        return torch.stack([done[prompt][0] for prompt in prompts]), RowPrefix([done[prompt][1] for prompt in prompts])

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: RowCache, width: int
    ) -> Float[Tensor, "B V"]:
        """Return the logits after one more token in each slot; see `Decoder`."""
        logits = torch.zeros(len(tokens), self.vocab_size, device=self.device)
        for slot, position in enumerate(positions.tolist()):
            if position == 0:  # an idle slot: a row has at least a prompt and a token
                cache.states[slot] = None
                continue
            state = cache.states[slot]
            logits[slot], cache.states[slot] = self._call(tokens[slot, None, None], state, position=position)
        return logits


def state_bytes(state: Any) -> int:
    """Return the memory of all tensors in `state`, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(state, set()))


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for one in (*held, *getattr(value, "__dict__", {}).values()):
        if not isinstance(one, type):
            yield from _tensors(one, seen)
