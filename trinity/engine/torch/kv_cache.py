"""The key-value cache: preallocated slots, and prompts shared by slots.

Dimension key: S = slots, L = positions a slot, H = key-value heads, D = head size, N = keys and values of all layers,
T = some tokens of a slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from trinity.engine.torch.shared_prompts import Group, Prefix, PromptTable, SharedPrompts, span_of
from trinity.engine.torch.transfer import upload

__all__ = ["KVCache", "Prefix"]

_WIDTH_STEP = 32


class KVCache:
    """Keys and values of up to S sequences of up to L tokens.

    Each layer has keys and values [S, H, L, D]. A slot holds a sequence from its position `start` on; the tokens before
    that are a prompt that it shares. The rotary position of a token is its place plus the slot's `shift`.

    Args:
        num_slots: S.
        max_length: L.
        is_fixed: allocate all of it at the first write and never change the shape. Otherwise the memory grows with
            the rows and the lengths that are used.
    """

    def __init__(self, num_slots: int, max_length: int, *, is_fixed: bool) -> None:
        self.num_slots = num_slots
        self.max_length = max_length
        self.is_fixed = is_fixed
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.start = torch.zeros(num_slots, dtype=torch.long)
        self.shift = torch.zeros(num_slots, dtype=torch.long)
        self._shared = SharedPrompts(keeps_long_apart=is_fixed)

    def reserve(self, rows: int, width: int) -> None:
        """Grow to `rows` slots of `width` positions, once shapes are known."""
        if self.keys and not self._is_short(rows, width):
            return
        self.keys = [self._grown(tensor, rows, width) for tensor in self.keys]
        self.values = [self._grown(tensor, rows, width) for tensor in self.values]

    def write(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Copy the one prompt of `prefix` into each of `slots`."""
        index = self._begin(slots, prefix, start=0)
        self.reserve(max(slots) + 1, prefix.length)
        for own, new in zip(self.keys + self.values, prefix.keys + prefix.values, strict=True):
            own[index, :, : prefix.length] = new.to(own.device)

    def share(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Let `slots` attend to one prompt, held once, and hold only what follows."""
        self._begin(slots, prefix, start=prefix.length)
        self.reserve(max(slots) + 1, 1)
        self._shared.add(slots, prefix)

    def _begin(self, slots: Sequence[int], prefix: Prefix, *, start: int) -> Tensor:
        """Allocate on first use, set `start` and `shift`; return an index."""
        if not self.keys:
            self.keys = [self._empty(tensor) for tensor in prefix.keys]
            self.values = [self._empty(tensor) for tensor in prefix.values]
        self.start, self.shift = (tensor.to(prefix.keys[0].device) for tensor in (self.start, self.shift))
        index = upload(slots, self.start.device)
        self.start[index] = start
        self.shift[index] = prefix.shift
        return index

    def groups(self, *, is_static: bool = False) -> list[Group]:
        """Return the shared prompts for a step of all slots up to the last used."""
        return self._shared.groups(is_static=is_static)

    def prompt_table(self, num_rows: int) -> PromptTable:
        """Return where the prompts are that the first `num_rows` slots share."""
        return self._shared.table(num_rows, len(self.keys))

    def span(self, slot: int, start: int, end: int, *, prompt_length: int) -> Float[Tensor, "N H T D"]:
        """Return a copy of keys, then values of some of a slot's tokens.

        They are those from `start` to `end`. The first `prompt_length` tokens are a prompt that it shares.
        """
        parts = []
        if start < prompt_length:
            parts.append(self._shared.span(slot, start, min(end, prompt_length)))
        if end > prompt_length:
            parts.append(span_of(self.keys + self.values, slot, max(start - prompt_length, 0), end - prompt_length))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def release(self, slots: Sequence[int]) -> None:
        """Release the prompts that `slots` share."""
        self._shared.release(slots)
        if slots:
            self.shift.index_fill_(0, upload(slots, self.shift.device), 0)

    def move(self, sources: Sequence[int], targets: Sequence[int], *, width: int) -> None:
        """Copy the first `width` own positions of `sources` over `targets`.

        Shared prompts are not copied; the targets take over their use.
        """
        if not sources or not self.keys:
            return
        source, target = upload(sources, self.start.device), upload(targets, self.start.device)
        self.start[target] = self.start[source]
        self.shift[target] = self.shift[source]
        for tensor in self.keys + self.values:
            tensor[target, :, :width] = tensor[source, :, :width]
        self._shared.move(sources, targets)

    def clear(self) -> None:
        """Free the memory."""
        self.keys, self.values = [], []
        self._shared.clear()

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        own = sum(tensor.numel() * tensor.element_size() for tensor in self.keys + self.values)
        return own + self._shared.num_bytes

    def _is_short(self, rows: int, width: int) -> bool:
        return self.keys[0].shape[0] < rows or self.keys[0].shape[2] < width

    def _empty(self, like: Tensor) -> Tensor:
        rows, width = (self.num_slots, self.max_length) if self.is_fixed else (0, 0)
        return like.new_zeros(rows, like.shape[1], width, like.shape[3])

    def _grown(self, tensor: Tensor, rows: int, width: int) -> Tensor:
        """Return a larger copy of a tensor.

        It has at least twice the rows, or half more width, so that growth is rare.
        """
        old_rows, heads, old_width, size = tensor.shape
        new_rows = old_rows if rows <= old_rows else min(self.num_slots, max(rows, 2 * old_rows))
        wanted = old_width if width <= old_width else max(width, old_width + old_width // 2)
        new_width = min(self.max_length, -(-wanted // _WIDTH_STEP) * _WIDTH_STEP)
        grown = tensor.new_zeros(new_rows, heads, new_width, size)
        grown[:old_rows, :, :old_width] = tensor
        return grown
