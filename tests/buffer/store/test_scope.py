"""Conditions that name rows by their ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select

from trinity.buffer.store.scope import CHUNK, of_ids

TABLE = Table("numbers", MetaData(), Column("id", Integer, primary_key=True))
ENGINE = create_engine("sqlite://")
TABLE.metadata.create_all(ENGINE)
with ENGINE.begin() as filled:
    filled.execute(insert(TABLE), [{"id": number} for number in range(1, 2001)])


def found(ids: list[int]) -> list[int]:
    with ENGINE.connect() as connection:
        return [number for rows in of_ids(TABLE.c.id, ids) for number in connection.scalars(select(TABLE).where(rows))]


@given(
    ids=st.lists(st.integers(1, 40), unique=True)
    | st.builds(lambda first, number: list(range(first, first + number)), st.integers(1, 900), st.integers(0, 1100))
)
def test_exactly_the_rows_of_the_ids_are_found(ids: list[int]) -> None:
    assert sorted(found(ids)) == sorted(ids)


def test_many_ids_with_gaps_are_several_conditions() -> None:
    ids = [number for number in range(1, 2001) if number != 1000]
    assert sorted(found(ids)) == ids
    assert len(list(of_ids(TABLE.c.id, ids))) == -(-len(ids) // CHUNK)


def test_ids_that_follow_each_other_are_one_condition() -> None:
    assert len(list(of_ids(TABLE.c.id, list(range(2000, 0, -1))))) == 1
