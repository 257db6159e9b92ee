"""A dataset as selectors see it: its usable rows and its columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any, Protocol

from trinity.buffer.dataset import Table


class DataSource(Protocol):
    """What a selector chooses from."""

    @property
    def dataset_size(self) -> int:
        """The number of usable rows."""
        ...

    @property
    def dataset(self) -> SelectedRows:
        """The usable rows."""
        ...


class SelectedRows:
    """The usable rows of a table, in the form of a `datasets.Dataset`.

    Args:
        table: all rows.
        numbers: row numbers of the usable rows.
    """

    def __init__(self, table: Table, numbers: Sequence[int]) -> None:
        self._table = table
        self._numbers = numbers

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self._table.columns)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, key: str | int) -> Any:
        """Return the column of a name as a list, or the row of a number as a dict.

        A row that lacks a value has None there.

        Raises:
            KeyError: no such column.
            IndexError: no such row.
        """
        if not isinstance(key, str):
            return dict(self._table.row(self._numbers[int(key)]).values)
        if key not in self._table.columns:
            raise KeyError(f"the dataset has no column {key!r}; known: {', '.join(self._table.columns)}")
        return [self._table.row(number).values.get(key) for number in self._numbers]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))


def size_of(data_source: DataSource | Sized) -> int:
    """Return the number of rows that can be chosen."""
    return len(data_source) if isinstance(data_source, Sized) else data_source.dataset_size
