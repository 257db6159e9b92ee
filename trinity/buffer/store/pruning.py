"""Which payloads of used experiences stay in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select, update

from trinity.buffer.store import fates
from trinity.buffer.store.scope import Scope, among, chunks
from trinity.buffer.store.tables import BLOB, EXPERIENCE
from trinity.buffer.store.types import ConsumerToken
from trinity.common.schema.sql_schema import DROPPED, READY, TRAINED
from trinity.utils.log import get_logger

GIB = 1 << 30
PRUNED = "pruned"

# `+ 0`: for the plain column, SQLite may search the index of all trained rows, and not that of rows with a payload.
_STEP = EXPERIENCE.c.trained_step + 0

_logger = get_logger("buffer.store")


class _Counted:
    """What knows sizes by step, counted in transactions."""

    _sizes: object

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Forget them if the block, which has a transaction, fails."""
        try:
            yield
        except BaseException:
            self._sizes = None
            raise


class Keeping(_Counted):
    """Decides which payloads of trained or dropped experiences are kept.

    Payloads that a resume needs, or that may be used again, are always kept. Of the others, those of the oldest
    training steps are removed first.

    Args:
        limit: most bytes of the others; None: all are kept.
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
        # The rows of a step do not change any more once no resume goes back before it, unless rows are reused.
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
            number += _forget(connection, and_(rows, last >= _STEP), {})
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


class NewestSteps(_Counted):
    """Decides which explore steps are kept in a log that nobody trains on.

    The oldest are dropped first; the newest is always kept.

    Args:
        limit: most bytes of their payloads; None: all are kept.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._sizes: Counter[int] | None = None

    def prune(self, connection: Connection, scope: Scope, *, producer: str) -> int:
        """Drop the oldest waiting experiences beyond the limit.

        Return their number. Only the payloads are removed; texts and rewards stay in the log.
        """
        if self.limit is None:
            return 0
        columns = EXPERIENCE.c
        own = and_(scope.where(EXPERIENCE), columns.producer == producer, columns.state == READY)
        newest = -1 if self._sizes is None else max(self._sizes, default=-1)
        size = func.coalesce(func.sum(columns.payload_bytes), 0)
        found = select(columns.explore_step, size).where(own, columns.explore_step > newest)
        sizes = Counter[int]() if self._sizes is None else self._sizes
        sizes.update({int(row[0]): int(row[1]) for row in connection.execute(found.group_by(columns.explore_step))})
        self._sizes = sizes
        gone = []
        for step in sorted(sizes)[:-1]:
            if sizes.total() <= self.limit:
                break
            gone.append(step)
            del sizes[step]
        if not gone:
            return 0
        rows = and_(own, columns.explore_step <= gone[-1])
        rollouts = connection.scalar(select(func.count()).where(rows, columns.is_first == 1)) or 0
        fates.add(connection, scope, fates.STORE, step=0, counts={fates.filtered(PRUNED): rollouts})
        return _forget(connection, rows, {"state": DROPPED, "drop_reason": PRUNED})


def _forget(connection: Connection, rows: ColumnElement[bool], values: dict[str, str]) -> int:
    """Delete the payloads of rows and set columns of theirs.

    Return the number of rows.
    """
    gone = connection.scalars(select(EXPERIENCE.c.id).where(rows)).all()
    for part in chunks(gone):
        connection.execute(delete(BLOB).where(among(BLOB.c.id, part)))
        mine = among(EXPERIENCE.c.id, part)
        connection.execute(update(EXPERIENCE).where(mine).values(**values, payload_bytes=None))
    return len(gone)


def _held(token: ConsumerToken) -> ColumnElement[bool]:
    columns = EXPERIENCE.c
    own = and_(Scope.of(token).where(EXPERIENCE), columns.claimed_by == token.consumer)
    return and_(own, columns.payload_bytes.is_not(None), columns.trained_step.is_not(None))


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
    size = func.sum(EXPERIENCE.c.payload_bytes)
    return {int(row[0]): int(row[1]) for row in connection.execute(select(_STEP, size).where(rows).group_by(_STEP))}
