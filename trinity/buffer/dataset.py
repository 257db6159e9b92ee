"""Datasets as rows.

Data files are read directly, with line numbers; everything else is read through `datasets`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import xxhash

from trinity.buffer.data_files import data_files, is_saved_dataset, no_split
from trinity.buffer.rows import BadRow, DataRow, read_rows
from trinity.common.errors import CheckpointError, DataError

_FINGERPRINT_ROWS = 256


class Table(Protocol):
    """Rows by number."""

    columns: list[str]
    bad: list[BadRow]

    def __len__(self) -> int: ...

    def row(self, number: int) -> DataRow:
        """Return row `number`, 0-based."""
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


class ArrowTable:
    """Rows of a `datasets.Dataset`, read from its Arrow files when asked for.

    Args:
        dataset: the dataset.
        name: for messages.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset = dataset
        self._name = name
        self.bad: list[BadRow] = []
        self.columns = list(dataset.column_names)

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, number: int) -> DataRow:
        """Return row `number`, 0-based; its `line` is 1-based."""
        return DataRow(self._name, number + 1, dict(self._dataset[number]))


def load_table(path: str | None, *, split: str = "train", subset_name: str | None = None) -> Table:
    """Return the rows of a file, a folder, a saved dataset or a hub id.

    Raises:
        DataError: no such path or hub id (E4001), no rows (E4002), no such split or subset (E4003), or files
            that cannot be read (E4010, E4060); the message says what is there instead.
    """
    if not path:
        raise DataError("the path of a dataset is not set; give a file, a folder or a hub id", code="E4001")
    files = data_files(path, split=split, subset_name=subset_name)
    table: Table
    if files and any(file.suffix != ".parquet" for file in files):
        table = ListTable([row for file in files for row in read_rows(file)])
    elif files:
        table = ArrowTable(_load_parquet(files), path)
    elif is_saved_dataset(Path(path).expanduser()):
        table = ArrowTable(_load_saved(Path(path).expanduser(), split), path)
    else:
        table = ArrowTable(_load_with_datasets(path, split, subset_name), path)
    if not len(table) and not table.bad:
        raise DataError(f"{path} has no rows in split {split!r}", code="E4002")
    return table


def fingerprint(table: Table) -> str:
    """Return a hash of columns, length and up to 256 evenly spaced rows."""
    digest = xxhash.xxh3_128(repr((sorted(table.columns), len(table))).encode())
    stride = max(1, len(table) // _FINGERPRINT_ROWS)
    for number in range(0, len(table), stride):
        digest.update(repr(sorted(table.row(number).values.items())).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def check_unchanged(what: str, own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse to continue with data or selector other than a checkpoint's.

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


def _load_parquet(files: list[Path]) -> Any:
    import datasets
    import pyarrow
    import pyarrow.parquet

    try:
        tables = [pyarrow.parquet.read_table(file, memory_map=True) for file in files]
        return datasets.Dataset(pyarrow.concat_tables(tables, promote_options="default"))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        names = ", ".join(str(file) for file in files)
        raise DataError(
            f"{names}: not readable as parquet ({str(error).splitlines()[0]}); copy the file again", code="E4060"
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


def _load_with_datasets(path: str, split: str, subset_name: str | None) -> Any:
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(path, name=subset_name, split=split)
    except datasets.exceptions.DatasetGenerationError as error:
        raise DataError(f"{path}: the files cannot be read: {error.__cause__ or error}", code="E4010") from error
    except ValueError as error:
        # `datasets` names the available splits and subsets in these messages.
        raise DataError(f"{path}, split {split!r}, subset {subset_name!r}: {error}", code="E4003") from error
    except (OSError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"{path} is neither a file or folder on this machine nor a dataset that can be fetched: {error}",
            code="E4001",
        ) from error
    finally:
        datasets.enable_progress_bars()
