"""Datasets as rows.

Data files are read directly, with line numbers; everything else is read through `datasets`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import xxhash

from trinity.buffer.data_files import check_split_of_file, data_files, is_saved_dataset, no_split
from trinity.buffer.hub_dataset import load_with_datasets
from trinity.buffer.parquet import refuse_bomb
from trinity.buffer.rows import BadRow, DataRow, read_rows
from trinity.common.errors import CheckpointError, DataError

_ROWS_A_READ = 100  # ten times as fast as one by one


class Table(Protocol):
    """Rows, each of which is read by its number."""

    columns: list[str]
    bad: list[BadRow]

    def __len__(self) -> int: ...

    def row(self, number: int) -> DataRow:
        """Return row `number`, 0-based."""
        ...

    def all_values(self) -> Iterator[Mapping[str, Any]]:
        """Yield the columns of every row, in order."""
        ...


class ListTable:
    """Rows of JSON and CSV files, in memory.

    Args:
        rows: readable and unreadable rows in file order.
    """

    def __init__(self, rows: Sequence[DataRow | BadRow]) -> None:
        self._rows = [row for row in rows if isinstance(row, DataRow)]
        self.bad = [row for row in rows if isinstance(row, BadRow)]
        self.columns = list(dict.fromkeys(key for row in self._rows for key in row.values))

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, number: int) -> DataRow:
        """Return row `number`, 0-based."""
        return self._rows[number]

    def all_values(self) -> Iterator[Mapping[str, Any]]:
        """Yield the columns of every row, in order."""
        return (row.values for row in self._rows)


class ArrowTable:
    """Rows of a `datasets.Dataset`, read from its Arrow files when asked for.

    Args:
        dataset: the dataset.
        name: for messages.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset = _with_encoded_images(dataset)
        self._name = name
        self.bad: list[BadRow] = []
        self.columns = list(dataset.column_names)

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, number: int) -> DataRow:
        """Return row `number`, 0-based; its `line` is 1-based."""
        return DataRow(self._name, number + 1, dict(self._dataset[number]))

    def all_values(self) -> Iterator[Mapping[str, Any]]:
        """Yield the columns of every row, in order."""
        for start in range(0, len(self), _ROWS_A_READ):
            read = self._dataset[start : start + _ROWS_A_READ]
            yield from (dict(zip(read, values, strict=True)) for values in zip(*read.values(), strict=True))


class JoinedTable:
    """The rows of several tables, one after the other.

    Args:
        tables: the tables, in order; each row keeps its own file and line.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = list(tables)
        self._ends = list(itertools.accumulate(len(table) for table in tables))
        self.bad = [row for table in tables for row in table.bad]
        self.columns = list(dict.fromkeys(column for table in tables for column in table.columns))

    def __len__(self) -> int:
        return self._ends[-1]

    def row(self, number: int) -> DataRow:
        """Return row `number`, 0-based."""
        at = bisect.bisect_right(self._ends, number)
        return self._tables[at].row(number - (self._ends[at - 1] if at else 0))

    def all_values(self) -> Iterator[Mapping[str, Any]]:
        """Yield the columns of every row, in order."""
        return itertools.chain.from_iterable(table.all_values() for table in self._tables)


def _with_encoded_images(dataset: Any) -> Any:
    """Return the dataset with images as bytes or paths.

    `datasets` would decode them, and fail at a broken one.
    """
    import datasets

    encoded = {name: _encoded(feature) for name, feature in dataset.features.items()}
    changed = {name: feature for name, feature in encoded.items() if feature != dataset.features[name]}
    return dataset.cast(datasets.Features(encoded)) if changed else dataset


def _encoded(feature: Any) -> Any:
    import datasets

    if isinstance(feature, datasets.Image):
        return datasets.Image(decode=False)
    if isinstance(feature, datasets.List):
        return datasets.List(_encoded(feature.feature), length=feature.length)
    return feature


def load_table(path: str | Sequence[str] | None, *, split: str = "train", subset_name: str | None = None) -> Table:
    """Return the rows of a file, a folder, a saved dataset or a hub id.

    For a list of paths, which may be of different kinds, the rows come in the order of the list.

    Raises:
        DataError: no such path or hub id (E4001), no rows (E4002), no such split or subset (E4003), or files
            that cannot be read (E4010, E4060); the message says what is there instead.
    """
    if not path:
        raise DataError("the path of a dataset is not set; give a file, a folder or a hub id", code="E4001")
    check_split_of_file(path, split=split)
    if not isinstance(path, str):
        return JoinedTable([_table_of(each, split=split, subset_name=subset_name) for each in path])
    return _table_of(path, split=split, subset_name=subset_name)


def _table_of(path: str, *, split: str, subset_name: str | None) -> Table:
    if not path:
        raise DataError("a path of a dataset is empty; give a file, a folder or a hub id", code="E4001")
    files = data_files(path, split=split, subset_name=subset_name)
    table: Table
    if files and any(file.suffix != ".parquet" for file in files):
        table = ListTable([row for file in files for row in read_rows(file)])
    elif files:
        table = JoinedTable([ArrowTable(_load_parquet(file), str(file)) for file in files])
    elif is_saved_dataset(Path(path).expanduser()):
        table = ArrowTable(_load_saved(Path(path).expanduser(), split), path)
    else:
        table = ArrowTable(load_with_datasets(path, split=split, subset_name=subset_name), path)
    if not len(table) and not table.bad:
        raise DataError(f"{path} has no rows in split {split!r}", code="E4002")
    return table


def fingerprint(table: Table) -> str:
    """Return a hash of columns, length and all rows.

    It does not see the files, such as images, that rows name.
    """
    digest = xxhash.xxh3_128(repr((sorted(table.columns), len(table))).encode())
    for values in table.all_values():
        row = [(name, _short(value)) for name, value in sorted(values.items())]
        digest.update(repr(row).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _short(value: Any) -> Any:
    """Return the value with hashes in the place of bytes.

    The text of an image would be several times as large as the image.
    """
    if isinstance(value, bytes):
        return "bytes", xxhash.xxh3_128_hexdigest(value)
    if isinstance(value, dict):
        return {name: _short(inner) for name, inner in value.items()}
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def check_unchanged(what: str, own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse to resume with other data or settings than a checkpoint's.

    Raises:
        CheckpointError: a value of `own` is not that of `state` (E7005).
    """
    changed = [key for key, value in own.items() if state.get(key) != value]
    if changed:
        raise CheckpointError(
            f"{what} changed since the checkpoint ({', '.join(changed)}); restore it, or start a new run with "
            "continue_from_checkpoint: false",
            code="E7005",
        )


def _load_parquet(file: Path) -> Any:
    import datasets
    import pyarrow
    import pyarrow.parquet

    try:
        refuse_bomb(file)
        return datasets.Dataset(pyarrow.parquet.read_table(file, memory_map=True))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{file}: not readable as parquet ({str(error).splitlines()[0]}); copy the file again", code="E4060"
        ) from error


def _load_saved(folder: Path, split: str) -> Any:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: cannot read the saved dataset: {error}", code="E4060") from error
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise no_split(folder, split, loaded)
        return loaded[split]
    own = str(loaded.split or split)
    if own != split:
        raise no_split(folder, split, [own])
    return loaded
