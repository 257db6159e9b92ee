"""The key-value cache: one row a slot, preallocated, written in place.

Dimension key: S = slots, L = positions a slot, H = key-value heads, D = head size, G = prompts, P = prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_WIDTH_STEP = 64


@dataclass(frozen=True)
class Prefix:
    """Keys and values of prompts after their prefill.

    Attributes:
        keys: one tensor [G, H, P, D] a layer.
        values: likewise.
    """

    keys: list[Tensor]
    values: list[Tensor]

    def row(self, index: int, length: int) -> Prefix:
        """Return the prefix of one prompt, [1, H, length, D], as copies that hold no other prompt's memory."""
        return Prefix(
            [key[index : index + 1, :, :length].clone() for key in self.keys],
            [value[index : index + 1, :, :length].clone() for value in self.values],
        )


class KVCache:
    """Keys and values of up to `num_slots` sequences of up to `max_length` tokens.

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

    def reserve(self, rows: int, width: int) -> None:
        """Make room for `rows` slots of `width` positions once the layers' shapes are known."""
        if self.keys and not self._is_short(rows, width):
            return
        self.keys = [self._grown(tensor, rows, width) for tensor in self.keys]
        self.values = [self._grown(tensor, rows, width) for tensor in self.values]

    def write(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Copy the one prompt of `prefix` into each of `slots`."""
        length = prefix.keys[0].shape[2]
        if not self.keys:
            self.keys = [self._empty(tensor) for tensor in prefix.keys]
            self.values = [self._empty(tensor) for tensor in prefix.values]
        self.reserve(max(slots) + 1, length)
        index = torch.tensor(slots, device=prefix.keys[0].device)
        for own, new in zip(self.keys + self.values, prefix.keys + prefix.values, strict=True):
            own[index, :, :length] = new

    def move(self, sources: Sequence[int], targets: Sequence[int], *, width: int) -> None:
        """Copy the first `width` positions of the slots `sources` over the slots `targets`."""
        if not sources or not self.keys:
            return
        source = torch.tensor(sources, device=self.keys[0].device)
        target = torch.tensor(targets, device=self.keys[0].device)
        for tensor in self.keys + self.values:
            tensor[target, :, :width] = tensor[source, :, :width]

    def clear(self) -> None:
        """Give the memory back."""
        self.keys, self.values = [], []

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.keys + self.values)

    def _is_short(self, rows: int, width: int) -> bool:
        return self.keys[0].shape[0] < rows or self.keys[0].shape[2] < width

    def _empty(self, like: Tensor) -> Tensor:
        rows, width = (self.num_slots, self.max_length) if self.is_fixed else (0, 0)
        return like.new_zeros(rows, like.shape[1], width, like.shape[3])

    def _grown(self, tensor: Tensor, rows: int, width: int) -> Tensor:
        """Return a larger copy: twice the rows or half more width at least, so that growth is rare."""
        old_rows, heads, old_width, size = tensor.shape
        new_rows = old_rows if rows <= old_rows else min(self.num_slots, max(rows, 2 * old_rows))
        wanted = old_width if width <= old_width else max(width, old_width + old_width // 2)
        new_width = min(self.max_length, -(-wanted // _WIDTH_STEP) * _WIDTH_STEP)
        grown = tensor.new_zeros(new_rows, heads, new_width, size)
        grown[:old_rows, :, :old_width] = tensor
        return grown
