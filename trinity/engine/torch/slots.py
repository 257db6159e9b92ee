"""The state of the rows in slots, as tensors on the device.

It consists of the last token, the length and the sampling parameters of each row.

Dimension key: S = slots, B = rows of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from trinity.common.models.vocabulary import Drawable
from trinity.engine.sampler import RowParams
from trinity.engine.torch.request import RunningRow
from trinity.engine.torch.transfer import upload

_OFF_TOP_P = 2.0


@dataclass(frozen=True)
class _Facts:
    """Which sampling parameters occur in slots; see `RowParams`.

    `with_least` are the rows that have a minimum length.
    """

    has_temperature: bool
    has_greedy: bool
    max_top_k: int
    has_top_p: bool
    with_least: tuple[RunningRow, ...]

    @classmethod
    def of(cls, rows: Sequence[RunningRow], num_tokens: int) -> _Facts:
        params = [row.request.params for row in rows]
        return cls(
            has_temperature=any(p.temperature not in (0, 1) for p in params),
            has_greedy=any(p.temperature == 0 for p in params),
            max_top_k=max((p.top_k for p in params if 0 < p.top_k < num_tokens), default=0),
            has_top_p=any(p.top_p < 1 for p in params),
            with_least=tuple(row for row in rows if row.request.params.min_tokens),
        )


class Slots:
    """Up to S rows; each state tensor is [S].

    An idle slot is a sequence of one token that never grows.

    Args:
        num_slots: S.
        drawable: the token ids that may be drawn, and those of them that end a response.
        device: device of the tensors.
    """

    def __init__(self, num_slots: int, *, drawable: Drawable, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Shaped[Tensor, "*shape"]:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.rows: list[RunningRow | None] = [None] * num_slots
        self.num_tokens = drawable.num_tokens
        self.stop_ids = torch.tensor(drawable.stop_ids, dtype=torch.long, device=device)
        self.unknown_ids = torch.tensor(drawable.unknown_ids, dtype=torch.long, device=device)
        self.token = zeros(num_slots)
        self.length = zeros(num_slots) + 1
        self.prompt_length = zeros(num_slots) + 1
        self.min_length = zeros(num_slots)
        self.key = zeros(num_slots)
        self.top_k = zeros(num_slots) + self.num_tokens
        self.top_p = zeros(num_slots, dtype=torch.float32) + _OFF_TOP_P
        self.temperature = zeros(num_slots, dtype=torch.float32) + 1.0
        self.is_greedy = zeros(num_slots, dtype=torch.bool)
        self.is_active = zeros(num_slots, dtype=torch.bool)
        self._facts: _Facts | None = None

    @property
    def num_active(self) -> int:
        """Number of slots that hold a row."""
        return len(self.rows) - self.rows.count(None)

    def free(self) -> list[int]:
        """Return the idle slots in ascending order."""
        return [slot for slot, row in enumerate(self.rows) if row is None]

    def place(self, slots: Sequence[int], rows: Sequence[RunningRow]) -> Tensor:
        """Put `rows` with prompts into `slots`; return `slots` as an index [B]."""
        device = self.token.device
        index = upload(slots, device)
        params = [row.request.params for row in rows]
        lengths = [len(row.request.prompt) for row in rows]
        columns: list[tuple[Tensor, list]] = [
            (self.token, [row.request.prompt[-1] for row in rows]),
            (self.length, lengths),
            (self.prompt_length, lengths),
            (self.min_length, [n + p.min_tokens for n, p in zip(lengths, params, strict=True)]),
            (self.key, [row.request.keys[row.index] for row in rows]),
            (self.top_k, [p.top_k if p.top_k > 0 else self.num_tokens for p in params]),
            (self.top_p, [p.top_p if p.top_p < 1 else _OFF_TOP_P for p in params]),
            (self.temperature, [p.temperature or 1.0 for p in params]),
            (self.is_greedy, [p.temperature == 0 for p in params]),
            (self.is_active, [True] * len(rows)),
        ]
        for column, values in columns:
            column[index] = upload(values, device, column.dtype)
        for slot, row in zip(slots, rows, strict=True):
            self.rows[slot] = row
            row.slot = slot
        self._facts = None
        return index

    def release(self, slots: Sequence[int]) -> None:
        """Make `slots` idle."""
        if not slots:
            return
        for slot in slots:
            row, self.rows[slot] = self.rows[slot], None
            if row is not None:
                row.slot = None
        self._facts = None
        self._idle(upload(slots, self.token.device))

    def _idle(self, index: Tensor) -> None:
        for column, value in ((self.is_active, False), (self.length, 1), (self.prompt_length, 1), (self.min_length, 0)):
            column.index_fill_(0, index, value)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move the rows of `sources` to the idle slots `targets`."""
        if not sources:
            return
        source, target = upload(sources, self.token.device), upload(targets, self.token.device)
        for column in (
            *(self.token, self.length, self.prompt_length, self.min_length, self.key),
            *(self.top_k, self.top_p, self.temperature, self.is_greedy, self.is_active),
        ):
            column[target] = column[source]
        for old, new in zip(sources, targets, strict=True):
            row, self.rows[old] = self.rows[old], None
            assert row is not None, "a row moves"
            self.rows[new], row.slot = row, new
        self._idle(source)

    def sampling(self, where: slice | Int[Tensor, "B"]) -> RowParams:
        """Return the sampling parameters [B] of the slots `where`."""
        facts = self._facts = self._facts or _Facts.of([row for row in self.rows if row is not None], self.num_tokens)
        return RowParams(
            temperature=self.temperature[where],
            is_greedy=self.is_greedy[where],
            top_k=self.top_k[where],
            top_p=self.top_p[where],
            no_stop=self.length[where] < self.min_length[where],
            stop_ids=self.stop_ids,
            num_tokens=self.num_tokens,
            unknown_ids=self.unknown_ids,
            has_temperature=facts.has_temperature,
            has_greedy=facts.has_greedy,
            max_top_k=facts.max_top_k,
            has_top_p=facts.has_top_p,
            has_min=any(row.num_drawn < row.request.params.min_tokens for row in facts.with_least),
        )

    def advance(self, where: slice | Int[Tensor, "B"], tokens: Int[Tensor, "B"]) -> None:
        """Append one token [B] to the active slots among `where`."""
        self.token[where] = tokens
        self.length[where] += self.is_active[where]
