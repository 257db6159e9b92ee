"""Search for the known name closest to a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def distance(left: str, right: str) -> int:
    """Return edits between names: insert, delete, replace, swap neighbours."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        now = [i]
        for j, b in enumerate(right, start=1):
            cost = min(row[j] + 1, now[j - 1] + 1, row[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            now.append(cost)
        before, row = row, now
    return row[-1]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the closest known name; `None` if all differ by over a third."""
    lowered = name.lower()
    ranked = sorted(
        (distance(lowered, other.lower()), -difflib.SequenceMatcher(None, name, other).ratio(), other)
        for other in set(known)
        if abs(len(other) - len(name)) <= max(2, len(name) // 3)
    )
    if not ranked:
        return None
    edits, _, best = ranked[0]
    shortest = min(len(name), len(best))
    return best if edits <= (max(1, shortest // 3) if shortest > 2 else 0) else None
