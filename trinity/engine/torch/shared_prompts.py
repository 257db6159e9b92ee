"""Prompts with one copy of keys and values for all responses of a group.

Their keys and values are on shelves: tensors that hold several prompts, each padded to the width of the shelf.

Dimension key: E = prompts of a shelf, H = key-value heads, W = positions of a prompt, D = head size,
B = rows of a step, R = rows whose prompts are on one shelf, G = prompts of a prefill, P = prompt tokens,
M = queries of a row and key head, N = keys and values of all layers, T = tokens of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trinity.engine.torch.attention import EXACT_KEYS, Part, hidden_after
from trinity.engine.torch.transfer import upload

_LEAST_WIDTH = 32


@dataclass(frozen=True, eq=False)
class Prefix:
    """Keys and values of prompts after their prefill.

    Attributes:
        keys: one tensor [G, H, P, D] a layer.
        values: likewise.
        shift: what is added to the places of tokens after the prompt for their rotary positions.
    """

    keys: list[Tensor]
    values: list[Tensor]
    shift: int = 0

    @property
    def length(self) -> int:
        """P, the padded length of the prompts."""
        return self.keys[0].shape[2]

    def row(self, index: int, length: int) -> Prefix:
        """Return the prefix [1, H, length, D] of one prompt.

        It keeps no other prompt's memory alive.
        """
        if length == self.length and len(self.keys[0]) == 1:
            return self
        return Prefix(
            [key[index : index + 1, :, :length].clone() for key in self.keys],
            [value[index : index + 1, :, :length].clone() for value in self.values],
            self.shift,
        )

    @classmethod
    def of(cls, states: Float[Tensor, "N H P D"], *, shift: int = 0) -> Prefix:
        """Return the prefix of a prompt whose keys, then values are one tensor."""
        keys, values = states.unsqueeze(1).chunk(2)
        return cls(list(keys.unbind(0)), list(values.unbind(0)), shift)

    def span(self, start: int, end: int) -> Float[Tensor, "N H T D"]:
        """Return a copy of keys, then values of the first prompt's tokens.

        They are those from `start` to `end`.
        """
        return span_of(self.keys + self.values, 0, start, end)


@dataclass(frozen=True)
class Group:
    """Attention of one step to the prompts of a shelf.

    It takes one product per prompt for all rows that share it.

    Attributes:
        keys: one tensor [E, H, W, D] a layer.
        values: likewise.
        bias: [E, 1, 1, W], hides positions after the end of a prompt; None if there are none.
        rows: rows of the step, those of a prompt in any order.
        places: place of each of these rows among E times `num_places`.
        num_places: most rows that share a prompt.
        is_whole: the rows are all rows of the step in the order of their places, and no place is empty.
    """

    keys: list[Tensor]
    values: list[Tensor]
    bias: Tensor | None
    rows: Int[Tensor, "R"]
    places: Int[Tensor, "R"]
    num_places: int
    is_whole: bool = False

    def clone(self) -> Group:
        """Return a copy that shares only keys and values."""
        bias = None if self.bias is None else self.bias.clone()
        return Group(self.keys, self.values, bias, self.rows.clone(), self.places.clone(), self.num_places)

    def copy_(self, other: Group) -> None:
        """Copy rows, places and lengths of a group of the same shape."""
        self.rows.copy_(other.rows)
        self.places.copy_(other.places)
        if self.bias is not None and other.bias is not None:
            self.bias.copy_(other.bias)

    def spread(self, queries: Float[Tensor, "B H M D"]) -> Tensor:
        """Return queries by prompt, [E, H, num_places * M, D], padded with zeros."""
        num_prompts, (_, heads, size, width) = self.keys[0].shape[0], queries.shape
        spread = queries
        if not self.is_whole:
            spread = queries.new_zeros(num_prompts * self.num_places, heads, size, width)
            spread[self.places] = queries[self.rows]
        spread = spread.view(num_prompts, self.num_places, heads, size, width).transpose(1, 2)
        return spread.reshape(num_prompts, heads, self.num_places * size, width)

    def joined(self, attended: Part, of_prompts: Part) -> Part:
        """Return attention over the rows' own keys and their prompts' keys.

        `attended` is over the own keys, [B, H, M, D]; `of_prompts` over the prompts', for the queries of `spread`.
        """
        further = Part(self._collect(of_prompts.out), self._collect(of_prompts.lse))
        return attended.merged(further) if self.is_whole else attended.merged_at(self.rows, further)

    def _collect(self, values: Tensor) -> Tensor:
        num_prompts, heads, size, width = values.shape
        apart = values.view(num_prompts, heads, self.num_places, size // self.num_places, width).transpose(1, 2)
        rows = apart.reshape(-1, heads, size // self.num_places, width)
        return rows if self.is_whole else rows[self.places]


@dataclass(frozen=True)
class PromptTable:
    """Where the prompt of each row of a step is.

    Attributes:
        keys: addresses [layers, B] of keys [H, W, D]; 0: the row has no shared prompt.
        values: likewise.
        lengths: tokens [B].
        widths: W [B].
    """

    keys: Int[Tensor, "layers B"]
    values: Int[Tensor, "layers B"]
    lengths: Int[Tensor, "B"]
    widths: Int[Tensor, "B"]


@dataclass(eq=False)
class _Shelf:
    """Prompts in tensors of one width.

    `slots` are the slots that share the prompt at each place, none at a free place.
    """

    keys: list[Tensor]
    values: list[Tensor]
    lengths: list[int]
    slots: list[list[int]] = field(default_factory=list)

    @property
    def width(self) -> int:
        return self.keys[0].shape[2]

    def put(self, prefix: Prefix, length: int) -> int:
        """Copy a prompt to a free place, with more room if needed; return it."""
        place = next((place for place, slots in enumerate(self.slots) if not slots), len(self.slots))
        if place == len(self.slots):
            self.slots.append([])
            self.lengths.append(0)
        if place >= self.keys[0].shape[0]:
            self.keys, self.values = ([_with_room(t) for t in tensors] for tensors in (self.keys, self.values))
        for own, new in zip(self.keys + self.values, prefix.keys + prefix.values, strict=True):
            own[place, :, :length] = new[0]
        self.lengths[place] = length
        return place

    def group(self, *, is_static: bool, is_only: bool) -> Group:
        """Return the group for a step over all slots.

        With `is_static` it has one of a few shapes. `is_only` says that there is no other shelf.
        """
        while not self.slots[-1]:
            self.slots.pop()
            self.lengths.pop()
        device = self.keys[0].device
        num_prompts, lengths = len(self.slots), self.lengths
        most = max(len(slots) for slots in self.slots)
        rows = [slot for slots in self.slots for slot in slots]
        if is_static:
            num_prompts = self.keys[0].shape[0]
            lengths = lengths + [1] * (num_prompts - len(lengths))
            most = rounded(most, least=1, an_octave=1)
        places = [place * most + index for place, slots in enumerate(self.slots) for index in range(len(slots))]
        if is_static:
            # A repeated pair writes the same numbers twice.
            missing = rounded(len(rows), least=1, an_octave=1) - len(rows)
            rows, places = rows + rows[:1] * missing, places + places[:1] * missing
        has_bias = is_static or any(length < self.width for length in lengths)
        return Group(
            keys=[t[:num_prompts] for t in self.keys],
            values=[t[:num_prompts] for t in self.values],
            bias=hidden_after(upload(lengths, device), self.width, torch.float32) if has_bias else None,
            rows=upload(rows, device),
            places=upload(places, device),
            num_places=most,
            is_whole=is_only and not is_static and rows == places == list(range(num_prompts * most)),
        )


class SharedPrompts:
    """The prompt of each slot, held until its last slot is released.

    Prompts are copied to tensors of a few widths, so that one product covers all prompts of a width.

    Args:
        keeps_long_apart: a prompt of more than `EXACT_KEYS` tokens has a product of its own on a CPU, so that its bits
            do not depend on the number of samples of another.
    """

    def __init__(self, *, keeps_long_apart: bool = False) -> None:
        self._keeps_long_apart = keeps_long_apart
        self._shelves: list[_Shelf] = []
        self._place_of: dict[int, tuple[_Shelf, int]] = {}
        self._known: WeakKeyDictionary[Prefix, tuple[_Shelf, int]] = WeakKeyDictionary()
        self._groups: dict[bool, list[Group]] = {}
        self._tables: dict[int, PromptTable] = {}

    def add(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Assign the prompt of `prefix` to `slots`, besides its present slots."""
        place = self._known.get(prefix)
        if place is None:
            place = self._known[prefix] = self._put(prefix)
        shelf, index = place
        shelf.slots[index].extend(slots)
        self._place_of |= dict.fromkeys(slots, place)
        self._forget()

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move the prompts of slots `sources` to `targets`; copy nothing."""
        for source, target in zip(sources, targets, strict=True):
            if source not in self._place_of:
                continue
            shelf, index = self._place_of[target] = self._place_of.pop(source)
            shelf.slots[index][shelf.slots[index].index(source)] = target
            self._forget()

    def release(self, slots: Sequence[int]) -> None:
        """Unassign the prompts of `slots`; free those without a slot."""
        for slot in slots:
            if slot not in self._place_of:
                continue
            place = shelf, index = self._place_of.pop(slot)
            shelf.slots[index].remove(slot)
            if not shelf.slots[index]:
                for prefix in [prefix for prefix, known in self._known.items() if known == place]:
                    del self._known[prefix]
            self._forget()
        self._shelves = [shelf for shelf in self._shelves if any(shelf.slots)]

    def span(self, slot: int, start: int, end: int) -> Float[Tensor, "N H T D"]:
        """Return a copy of keys, then values of part of a slot's prompt."""
        shelf, index = self._place_of[slot]
        return span_of(shelf.keys + shelf.values, index, start, end)

    def groups(self, *, is_static: bool = False) -> list[Group]:
        """Return one group per shelf, for a step of all slots up to the last used.

        The list stays the same until a slot changes. With `is_static`, shapes are rounded up to a few sizes.
        """
        if is_static not in self._groups:
            is_only = len(self._shelves) == 1
            self._groups[is_static] = [shelf.group(is_static=is_static, is_only=is_only) for shelf in self._shelves]
        return self._groups[is_static]

    def table(self, num_rows: int, num_layers: int) -> PromptTable:
        """Return where the prompts of the first `num_rows` slots are.

        It stays the same until a slot changes. The tensors that it points into are held here.
        """
        if num_rows not in self._tables:
            addresses = torch.zeros(2, num_layers, num_rows, dtype=torch.long)
            lengths, widths = (torch.zeros(num_rows, dtype=torch.long) for _ in range(2))
            for shelf in self._shelves:
                pairs = [(slot, place) for place, slots in enumerate(shelf.slots) for slot in slots if slot < num_rows]
                slots, places = (upload(column, lengths.device) for column in zip(*pairs, strict=True))
                first = torch.tensor([[t.data_ptr() for t in tensors] for tensors in (shelf.keys, shelf.values)])
                step = shelf.keys[0].stride(0) * shelf.keys[0].element_size()
                addresses[:, :, slots] = first[..., None] + places * step
                lengths[slots] = torch.tensor(shelf.lengths)[places]
                widths[slots] = shelf.width
            self._tables[num_rows] = PromptTable(addresses[0], addresses[1], lengths, widths)
        return self._tables[num_rows]

    def _forget(self) -> None:
        self._groups.clear()
        self._tables.clear()

    def clear(self) -> None:
        """Free the memory."""
        self.release(list(self._place_of))

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        tensors = [tensor for shelf in self._shelves for tensor in shelf.keys + shelf.values]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _put(self, prefix: Prefix) -> tuple[_Shelf, int]:
        length = prefix.length
        if self._keeps_long_apart and length > EXACT_KEYS and prefix.keys[0].device.type == "cpu":
            alone = _Shelf(prefix.keys, prefix.values, [length], [[]])
            self._shelves.append(alone)
            return alone, 0
        width = rounded(length, least=_LEAST_WIDTH)
        shelf = next((s for s in self._shelves if s.width == width), None)
        if shelf is None:
            shelf = _Shelf([_empty(t, width) for t in prefix.keys], [_empty(t, width) for t in prefix.values], [])
            self._shelves.append(shelf)
        return shelf, shelf.put(prefix, length)


def span_of(tensors: Sequence[Tensor], place: int, start: int, end: int) -> Float[Tensor, "N H T D"]:
    """Return a copy of some positions at one place of each tensor.

    They are those from `start` to `end` of tensors [., H, W, D]. One view of each takes half the time of indices, which
    counts: there is a copy for each row.
    """
    views = []
    for tensor in tensors:
        steps, (_, heads, _, size) = tensor.stride(), tensor.shape
        offset = tensor.storage_offset() + place * steps[0] + start * steps[2]
        views.append(tensor.as_strided((1, heads, end - start, size), steps, offset))
    return torch.cat(views)


def rounded(size: int, *, least: int, an_octave: int = 4) -> int:
    """Return `size` rounded up to one of a few sizes.

    These are multiples of `least`, with at most `an_octave` of them between a power of two and the next.
    """
    octave = 1 << max(0, (size - 1).bit_length() - 1)
    step = max(least, octave // an_octave)
    return -(-size // step) * step


def _empty(like: Tensor, width: int) -> Tensor:
    return like.new_zeros(1, like.shape[1], width, like.shape[3])


def _with_room(tensor: Tensor) -> Tensor:
    """Return twice as many places for prompts, or half more of long ones."""
    count = len(tensor)
    further = count if tensor.shape[2] <= EXACT_KEYS else max(1, count // 2)
    return torch.cat([tensor, tensor.new_zeros(further, *tensor.shape[1:])])
