"""Scopes of rows, and conditions for many rows by id."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, FromClause, and_, bindparam

from trinity.buffer.store.types import ConsumerToken

CHUNK = 500

T = TypeVar("T")


@dataclass(frozen=True)
class Scope:
    """The rows of one buffer in one stage of one run."""

    run: str
    stage: str
    buffer: str

    @classmethod
    def of(cls, token: ConsumerToken) -> Scope:
        """Return the scope that `token` may touch."""
        return cls(token.run, token.stage, token.buffer)

    @property
    def values(self) -> dict[str, Any]:
        """The columns of the scope, for an insert."""
        return {"run": self.run, "stage": self.stage, "buffer": self.buffer}

    @functools.lru_cache(maxsize=256)  # noqa: B019 (a scope is three short texts)
    def where(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition that a row of `table` belongs to the scope."""
        return and_(table.c.run == self.run, table.c.stage == self.stage, table.c.buffer == self.buffer)


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield `items` in pieces that fit the parameter limit of a statement."""
    for i in range(0, len(items), CHUNK):
        yield items[i : i + CHUNK]


def among(column: ColumnElement[Any], part: Sequence[Any]) -> ColumnElement[bool]:
    """Return the condition that a column has a value of `part`.

    `part` is a piece of `chunks`.

    The values travel as one parameter: SQLAlchemy would look at each of them.
    """
    return column.in_(bindparam(None, part, expanding=True, type_=column.type))


def of_ids(column: ColumnElement[int], ids: Sequence[int]) -> Iterator[ColumnElement[bool]]:
    """Yield conditions that hold for the rows of `ids`, each for some of them.

    The rows of a batch mostly follow each other in the log, and then need one condition.
    """
    if ids and max(ids) - min(ids) + 1 == len(set(ids)):
        yield column.between(min(ids), max(ids))
    else:
        yield from (among(column, part) for part in chunks(ids))
