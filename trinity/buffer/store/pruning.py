"""Which payloads of used experiences stay in the log."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import ColumnElement, Connection, and_, func, select, update

from trinity.buffer.store.ledger import Scope
from trinity.buffer.store.tables import EXPERIENCE
from trinity.buffer.store.types import ConsumerToken
from trinity.common.schema.sql_schema import DROPPED, TRAINED
from trinity.utils.log import get_logger

GIB = 1 << 30

# A sum: for the column itself SQLite may search the index of all trained rows, and not that of those with a payload.
_STEP = EXPERIENCE.c.trained_step + 0

_logger = get_logger("buffer.store")


class Keeping:
    """Says which payloads of trained or dropped experiences stay.

    Those that a resume needs, or that may be used again, always do. Of the others the oldest training steps go first.

    Args:
        limit: bytes of the others, at most; None: all stay.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._sizes: tuple[ConsumerToken, Counter[int]] | None = None
        self._is_told = False

    def prune(self, connection: Connection, token: ConsumerToken, *, up_to_step: int, is_reused: bool) -> int:
        """Remove payloads beyond the limit; return their number.

        Args:
            connection: in a transaction that writes.
            token: of the consumer that used the rows.
            up_to_step: the last step that no resume needs.
            is_reused: trained rows keep their payload until they are retired.
        """
        if self.limit is None:
            return 0
        # What a step used does not change any more once no resume goes back behind it; where rows are reused it does.
        is_known = self._sizes is not None and self._sizes[0] == token and not is_reused
        sizes = self._sizes[1] if is_known and self._sizes else Counter[int]()
        newest = max(sizes, default=-1)
        spent = [and_(_held(token), each) for each in _spent(up_to_step, is_reused=is_reused)]
        for rows in spent:
            sizes.update(_sizes(connection, and_(rows, newest < _STEP)))
        self._sizes = token, sizes
        last = self._last_to_go(sizes)
        if last is None:
            return 0
        number = 0
        for rows in spent:
            gone = update(EXPERIENCE).where(rows, last >= _STEP).values(experience_bytes=None)
            number += connection.execute(gone).rowcount
        sizes.update({step: -size for step, size in sizes.items() if step <= last})
        self._tell(last)
        return number

    def _last_to_go(self, sizes: Counter[int]) -> int | None:
        assert self.limit is not None
        total = 0
        for step in sorted(sizes, reverse=True):
            total += sizes[step]
            if total > self.limit:
                return step if sizes[step] else None
        return None

    def _tell(self, last: int) -> None:
        if self.limit and not self._is_told:
            self._is_told = True
            _logger.warning(
                "the payloads of trained experiences have reached buffer.keep_payloads, %g GiB: those of the oldest "
                "steps go, now up to step %d; the texts stay",
                self.limit / GIB,
                last,
            )


def _held(token: ConsumerToken) -> ColumnElement[bool]:
    columns = EXPERIENCE.c
    own = and_(Scope.of(token).where(EXPERIENCE), columns.claimed_by == token.consumer)
    return and_(own, columns.experience_bytes.is_not(None), columns.trained_step.is_not(None))


def _spent(up_to_step: int, *, is_reused: bool) -> list[ColumnElement[bool]]:
    """Return conditions of rows that no resume needs.

    Each is one search of an index.
    """
    columns = EXPERIENCE.c
    unused = and_(columns.retired_step.is_(None), columns.trained_step <= up_to_step)
    spent = [
        and_(columns.state == DROPPED, unused),
        and_(columns.state == TRAINED, columns.retired_step <= up_to_step),
    ]
    return spent if is_reused else [*spent, and_(columns.state == TRAINED, unused)]


def _sizes(connection: Connection, rows: ColumnElement[bool]) -> dict[int, int]:
    """Return the bytes of the rows' payloads by the step that used them last."""
    size = func.sum(func.length(EXPERIENCE.c.experience_bytes))
    return {int(row[0]): int(row[1]) for row in connection.execute(select(_STEP, size).where(rows).group_by(_STEP))}
