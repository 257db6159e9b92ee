"""The state of the rows in the slots, as tensors: tokens so far and sampling parameters.

Dimension key: S = slots, L = positions a slot, B = rows of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from trinity.common.models.torch_engine.request import Row
from trinity.common.models.torch_engine.sampler import RowParams
from trinity.common.models.vocabulary import Drawable

_OFF_TOP_P = 2.0


class Slots:
    """Up to S rows; an idle slot is a sequence of one token that never grows.

    Args:
        num_slots: S.
        max_length: L.
        drawable: the token ids that may be drawn, and those of them that end a response.
        device: where the tensors live.
    """

    def __init__(self, num_slots: int, max_length: int, *, drawable: Drawable, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.rows: list[Row | None] = [None] * num_slots
        self.num_tokens = drawable.num_tokens
        self.stop_ids = torch.tensor(drawable.stop_ids, dtype=torch.long, device=device)
        self.unknown_ids = torch.tensor(drawable.unknown_ids, dtype=torch.long, device=device)
        self.tokens = zeros(num_slots, max_length + 1)
        self.logprobs = zeros(num_slots, max_length + 1, dtype=torch.float32)
        self.length = zeros(num_slots) + 1
        self.prompt_length = zeros(num_slots) + 1
        self.max_length = zeros(num_slots) + max_length
        self.min_length = zeros(num_slots)
        self.key = zeros(num_slots)
        self.top_k = zeros(num_slots) + self.num_tokens
        self.top_p = zeros(num_slots, dtype=torch.float32) + _OFF_TOP_P
        self.temperature = zeros(num_slots, dtype=torch.float32) + 1.0
        self.is_greedy = zeros(num_slots, dtype=torch.bool)
        self.ignore_eos = zeros(num_slots, dtype=torch.bool)
        self.is_active = zeros(num_slots, dtype=torch.bool)

    @property
    def num_active(self) -> int:
        """Number of slots that hold a row."""
        return len(self.rows) - self.rows.count(None)

    def free(self) -> list[int]:
        """Return the idle slots in ascending order."""
        return [slot for slot, row in enumerate(self.rows) if row is None]

    def place(self, slots: Sequence[int], rows: Sequence[Row]) -> Tensor:
        """Put `rows` with their prompts into `slots`; return the slots as an index tensor."""
        device = self.tokens.device
        index = torch.tensor(slots, device=device)
        params = [row.request.params for row in rows]
        lengths = [len(row.request.prompt) for row in rows]
        width = max(lengths)
        prompts = [row.request.prompt + [0] * (width - len(row.request.prompt)) for row in rows]
        columns: list[tuple[Tensor, list]] = [
            (self.length, lengths),
            (self.prompt_length, lengths),
            (self.max_length, [n + (p.max_tokens or 1) for n, p in zip(lengths, params, strict=True)]),
            (self.min_length, [n + p.min_tokens for n, p in zip(lengths, params, strict=True)]),
            (self.key, [row.request.keys[row.index] for row in rows]),
            (self.top_k, [p.top_k if p.top_k > 0 else self.num_tokens for p in params]),
            (self.top_p, [p.top_p if p.top_p < 1 else _OFF_TOP_P for p in params]),
            (self.temperature, [p.temperature or 1.0 for p in params]),
            (self.is_greedy, [p.temperature == 0 for p in params]),
            (self.ignore_eos, [p.ignore_eos for p in params]),
            (self.is_active, [True] * len(rows)),
        ]
        self.tokens[index, :width] = torch.tensor(prompts, device=device)
        for column, values in columns:
            column[index] = torch.tensor(values, dtype=column.dtype, device=device)
        for slot, row in zip(slots, rows, strict=True):
            self.rows[slot] = row
        return index

    def release(self, slots: Sequence[int]) -> None:
        """Make `slots` idle."""
        if not slots:
            return
        for slot in slots:
            self.rows[slot] = None
        index = torch.tensor(slots, device=self.tokens.device)
        self.is_active[index] = False
        self.length[index] = 1
        self.prompt_length[index] = 1
        self.min_length[index] = 0

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move the rows of `sources` to the idle slots `targets`."""
        if not sources:
            return
        source = torch.tensor(sources, device=self.tokens.device)
        target = torch.tensor(targets, device=self.tokens.device)
        for column in (
            *(self.tokens, self.logprobs, self.length, self.prompt_length, self.max_length, self.min_length),
            *(self.key, self.top_k, self.top_p, self.temperature, self.is_greedy, self.ignore_eos, self.is_active),
        ):
            column[target] = column[source]
        for old, new in zip(sources, targets, strict=True):
            self.rows[new] = self.rows[old]
        self.release(sources)

    def sampling(self, where: slice | Int[Tensor, "B"]) -> RowParams:
        """Return the sampling parameters of the slots `where`."""
        params = [row.request.params for row in self.rows if row is not None]
        top_ks = [p.top_k for p in params if 0 < p.top_k < self.num_tokens]
        no_stop = self.length[where] < self.min_length[where]
        return RowParams(
            temperature=self.temperature[where],
            is_greedy=self.is_greedy[where],
            top_k=self.top_k[where],
            top_p=self.top_p[where],
            no_stop=no_stop,
            stop_ids=self.stop_ids,
            num_tokens=self.num_tokens,
            unknown_ids=self.unknown_ids,
            has_temperature=any(p.temperature not in (0, 1) for p in params),
            has_greedy=any(p.temperature == 0 for p in params),
            max_top_k=max(top_ks, default=0),
            has_top_p=any(p.top_p < 1 for p in params),
            has_min=any(p.min_tokens > 0 for p in params) and bool(no_stop.any()),
        )

    def append(self, where: slice | Int[Tensor, "B"], tokens: Int[Tensor, "B"], logprobs: Tensor) -> list[int]:
        """Add one token to the active slots among `where`; return the positions in `where` of rows that ended."""
        length = self.length[where]
        slots = where if isinstance(where, Tensor) else torch.arange(len(self.rows), device=length.device)[where]
        self.tokens[slots, length] = tokens
        self.logprobs[slots, length] = logprobs
        is_active = self.is_active[where]
        length = length + is_active
        self.length[where] = length
        is_stop = torch.isin(tokens, self.stop_ids) & ~self.ignore_eos[where]
        return torch.nonzero((is_stop | (length >= self.max_length[where])) & is_active)[:, 0].tolist()
