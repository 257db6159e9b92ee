"""A database that can only be read, and the comparison of two results.

Statements have limits of time and rows.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
MAX_VALUE_BYTES = 1_000_000
_STEPS_PER_CHECK = 1000
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})


class ReadOnlyDatabase:
    """An SQLite file that statements can only read.

    Each object has its own connection.

    Args:
        path: the file.
        timeout_s: longest time of a statement in seconds.
        max_rows: most rows of a result; one more is kept to tell that there are more.
    """

    def __init__(self, path: Path, *, timeout_s: float, max_rows: int) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"there is no database {path}")
        self.timeout_s, self.max_rows, self._deadline = timeout_s, max_rows, float("inf")
        # The runner's thread opens and closes it; a rollout that is abandoned may be closed by another.
        uri = f"{path.resolve().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        self._connection.text_factory = lambda value: value.decode("utf-8", "replace")
        self._connection.set_progress_handler(lambda: time.monotonic() > self._deadline, _STEPS_PER_CHECK)
        self._connection.set_authorizer(_authorize)

    def rows(self, statement: str) -> list[Row]:
        """Return the first rows of the result of one statement.

        Raises:
            sqlite3.Error: it is no statement that reads, or took too long.
        """
        self._deadline = time.monotonic() + self.timeout_s
        try:
            return self._connection.execute(statement).fetchmany(self.max_rows + 1)
        except sqlite3.OperationalError as error:
            if time.monotonic() > self._deadline:
                raise sqlite3.OperationalError(f"stopped after {self.timeout_s:g} s") from error
            raise
        finally:
            self._deadline = float("inf")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _authorize(action: int, name: str | None, second: str | None, *_: str | None) -> int:
    is_read = action in _ALLOWED and not (action == sqlite3.SQLITE_FUNCTION and second == "load_extension")
    is_schema = action == sqlite3.SQLITE_PRAGMA and name in ("table_info", "table_list", "foreign_key_list")
    return sqlite3.SQLITE_OK if is_read or is_schema else sqlite3.SQLITE_DENY


def agreement(rows: Sequence[Row], gold: Sequence[Row], *, is_ordered: bool) -> float:
    """Return how well a result agrees with the gold one, from 0 to 1.

    That is the intersection of the rows over their union, each counted as often as it occurs; if the order counts,
    times the share of pairs of common rows that stand in the order of the gold result.
    """
    own, want = [list(map(_comparable, each)) for each in (rows, gold)]
    common = Counter(own) & Counter(want)
    union = Counter(own) | Counter(want)
    if not union:
        return 1.0
    share = common.total() / union.total()
    return share * _order(_only(own, common), _only(want, common)) if is_ordered else share


def orders(statement: str) -> bool:
    """Return whether the result of a statement has an order."""
    outer = re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"", "", statement)
    while (shorter := re.sub(r"\([^()]*\)", "", outer)) != outer:
        outer = shorter
    return re.search(r"\border\s+by\b", outer, re.IGNORECASE) is not None


def _comparable(row: Row) -> Row:
    """Return a row of which 1 and 1.0, and sums in another order, are equal."""
    return tuple(float(f"{value:.9g}") if isinstance(value, int | float) else value for value in row)


def _only(rows: Sequence[Row], common: Counter[Row]) -> list[Row]:
    left, kept = common.copy(), []
    for row in rows:
        if left[row]:
            left[row] -= 1
            kept.append(row)
    return kept


def _order(rows: Sequence[Row], gold: Sequence[Row]) -> float:
    """Return the share of pairs in the same order, of the same rows."""
    places: dict[Row, list[int]] = {}
    for place, row in enumerate(gold):
        places.setdefault(row, []).append(place)
    at = [places[row].pop(0) for row in rows]
    pairs = [at[first] < at[second] for second in range(len(at)) for first in range(second)]
    return sum(pairs) / len(pairs) if pairs else 1.0
