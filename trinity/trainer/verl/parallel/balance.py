"""Division of a mini-batch's rows into shares for the ranks.

Every rank computes the shares of all, without communication.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from trinity.trainer.batch import TrainBatch, along_prefixes, micro_batches, units_of
from trinity.trainer.prefixes import NOTHING, Ordered, Sharing

LINEAR_COST = 24576  # cost of products relative to attention, per token, as the published trainer weighs them


@dataclass(frozen=True)
class Work:
    """A micro-batch of one rank.

    Attributes:
        rows: its rows.
        is_filler: computed only because another rank has one more and all ranks gather weights together; it does not
            count.
        scale: its share in the mean over the micro-batches of all ranks, if each is normalised by itself.
    """

    rows: list[int]
    is_filler: bool = False
    scale: float | None = None


def split_work(
    batch: TrainBatch,
    rows: Sequence[int],
    *,
    index: int,
    num_shares: int,
    is_balanced: bool,
    max_tokens: int | None,
    max_rows: int | None,
    sharing: Sharing = NOTHING,
) -> list[Work]:
    """Return the micro-batches of share `index`; all have the same number.

    Args:
        batch: gives lengths and the rows of an experience.
        rows: rows to compute, whole experiences.
        index: 0-based.
        num_shares: number of shares.
        is_balanced: give the shares equal work; else each gets one contiguous piece of the rows.
        max_tokens: most tokens of a micro-batch.
        max_rows: most rows of a micro-batch.
        sharing: what is computed once.
    """
    ordered = along_prefixes(batch, rows, sharing) if is_balanced else None
    has_equal_sizes = max_rows is not None
    if ordered is None:
        shares = share_rows(
            batch, rows, num_shares=num_shares, is_balanced=is_balanced, has_equal_sizes=has_equal_sizes
        )
    else:
        shares = share_prefixes(ordered, num_shares=num_shares, has_equal_sizes=has_equal_sizes)
    limits = {"max_tokens": max_tokens, "max_rows": max_rows}
    groups = [micro_batches(batch, share, **limits, sharing=sharing) for share in shares]
    most = max(len(group) for group in groups)
    return _filled(batch, rows, [Work(micro) for micro in groups[index]], most)


def work_in_order(
    batch: TrainBatch, rows: Sequence[int], *, index: int, num_shares: int, max_rows: int | None
) -> list[Work]:
    """Return the micro-batches of share `index`, each normalised by itself.

    A share is a contiguous piece of the batch, and a micro-batch the next rows of it: which rows are averaged together
    must not depend on their lengths. The mean is over the micro-batches of a share, then over shares. Rows that are not
    computed keep their places, and a micro-batch of such rows alone counts with a loss of 0.

    Args:
        batch: a mini-batch, of experiences of one row.
        rows: those of its rows that are computed.
        index: 0-based.
        num_shares: number of shares.
        max_rows: rows of a micro-batch; None means all.
    """
    computed = set(rows)
    shares = share_rows(
        batch, range(len(batch)), num_shares=num_shares, is_balanced=False, has_equal_sizes=max_rows is not None
    )
    works = []
    for share in shares:
        size = max_rows or max(len(share), 1)
        groups = [share[start : start + size] for start in range(0, len(share), size)]
        scale = 1.0 / max(len(groups), 1) / num_shares
        kept = [[row for row in group if row in computed] for group in groups]
        works.append([Work(group, scale=scale) for group in kept if group])
    return _filled(batch, rows, works[index], max(map(len, works)))


def _filled(batch: TrainBatch, rows: Sequence[int], own: list[Work], number: int) -> list[Work]:
    """Return a share's work and as many fillers as make it `number` pieces."""
    if len(own) == number:
        return own
    lengths = batch.lengths.tolist()
    units = units_of(list(rows), batch.rows_per_experience)
    shortest = min(units, key=lambda unit: sum(lengths[row] for row in unit))
    return own + [Work(shortest, is_filler=True)] * (number - len(own))


def share_rows(
    batch: TrainBatch, rows: Sequence[int], *, num_shares: int, is_balanced: bool, has_equal_sizes: bool
) -> list[list[int]]:
    """Divide `rows` into shares; the rows of an experience stay together.

        work = 24576 L + L^2 for a row of L tokens

    The largest first, each experience goes to the share with the least work so far (Graham, 1969, "Bounds on
    multiprocessing timing anomalies": at most 4/3 of the best). Each share keeps the order of `rows`.

    Args:
        batch: gives lengths and the rows of an experience.
        rows: rows to share, whole experiences.
        num_shares: number of shares.
        is_balanced: as above; else each share is one contiguous piece of the rows.
        has_equal_sizes: the shares differ by at most one experience.
    """
    units = units_of(list(rows), batch.rows_per_experience)
    most = -(-len(units) // num_shares)
    if not is_balanced:
        small, extra = divmod(len(units), num_shares)
        ends = [number * small + min(number, extra) for number in range(num_shares + 1)]
        pieces = [units[start:end] for start, end in zip(ends, ends[1:], strict=False)]
        return [[row for unit in piece for row in unit] for piece in pieces]
    lengths = batch.lengths.tolist()
    work = [sum(LINEAR_COST * lengths[row] + lengths[row] ** 2 for row in unit) for unit in units]
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    heap = [(0, number) for number in range(num_shares)]
    num_large = len(units) - (most - 1) * num_shares  # shares that may have `most` experiences, the others one less
    for place in sorted(range(len(units)), key=lambda place: (-work[place], place)):
        total, number = heapq.heappop(heap)
        shares[number].append(place)
        is_full = has_equal_sizes and _is_full(len(shares[number]), most, num_large)
        if has_equal_sizes and len(shares[number]) == most:
            num_large -= 1
            if num_large == 0:
                heap = [entry for entry in heap if len(shares[entry[1]]) < most - 1]
                heapq.heapify(heap)
        if not is_full:
            heapq.heappush(heap, (total + work[place], number))
    return [[row for place in sorted(share) for row in units[place]] for share in shares]


def share_prefixes(ordered: Ordered, *, num_shares: int, has_equal_sizes: bool) -> list[list[int]]:
    """Divide rows into shares of similar work that keep prefixes together.

        work = 24576 (L - s) + L^2 - s^2 for a row of L tokens, s of them in the row before

    A share is a piece of the order, so that at most one path of prefixes per cut is computed twice.

    Args:
        ordered: the rows.
        num_shares: number of shares.
        has_equal_sizes: the shares differ by at most one row.
    """
    work = [1 if has_equal_sizes else LINEAR_COST * (end - s) + end**2 - s**2 for _, s, end in ordered.items()]
    total, done = sum(work), 0
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    for row, own in zip(ordered.rows, work, strict=True):
        shares[(2 * done + own) * num_shares // (2 * total)].append(row)
        done += own
    return shares


def _is_full(size: int, most: int, num_large: int) -> bool:
    return size == most or (size == most - 1 and num_large <= 0)
