"""Rows of data files, and the files of each split.

JSON lines (with line numbers), JSON, CSV and parquet are read.

Nothing here imports torch or `datasets`, so that `trinity validate` can read the first rows.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trinity.buffer.parquet import refuse_bomb
from trinity.common.errors import DataError

MAX_ROW_BYTES = 8 * 1024 * 1024
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval", "training", "testing", "evaluation")


@dataclass(frozen=True)
class BadRow:
    """A row that is left out.

    Attributes:
        file: where it came from.
        line: 1-based line (JSON lines, CSV) or row number.
        key: column that is wrong; empty if the row itself is.
        reason: what is wrong.
        code: identifier of the rule.
    """

    file: str
    line: int
    key: str
    reason: str
    code: str = "E4010"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {f'{self.key}: ' if self.key else ''}{self.reason}"


@dataclass(frozen=True)
class DataRow:
    """A row and where it came from.

    Attributes:
        file: the data file or dataset.
        line: 1-based line (JSON lines, CSV) or row number.
        values: column -> value.
    """

    file: str
    line: int
    values: dict[str, Any]


def split_files(folder: Path, split: str) -> dict[str, list[Path]]:
    """Return a folder's data files by split, named as `datasets` does.

    A file belongs to a split if its name, or that of a folder it is in, begins with the split's name; if no name does,
    all files are the split `train`.
    """
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in SUFFIXES and file.is_file() and not file.name.startswith((".", "_"))
    )
    files = [file for file in files if file.name != "dataset_infos.json"]
    named: dict[str, list[Path]] = {}
    for file in files:
        for name in dict.fromkeys((split, *SPLITS)):
            if any(begins_with(part, name) for part in (file.stem, *file.relative_to(folder).parent.parts)):
                named.setdefault(name, []).append(file)
                break
    return named or ({"train": files} if files else {})


def begins_with(part: str, split: str) -> bool:
    """Return whether a name is that of a split, or begins with it."""
    return part == split or part.startswith(tuple(split + mark for mark in "-_."))


def read_rows(file: Path) -> Iterator[DataRow | BadRow]:
    """Yield the rows of a data file.

    A JSON or CSV row that cannot be read is yielded as `BadRow`.

    Raises:
        DataError: the file as a whole cannot be read (E4010), or a parquet file is damaged (E4060).
    """
    if file.suffix == ".parquet":
        return _read_parquet(file)
    if file.suffix == ".csv":
        return _read_csv(file)
    if file.suffix == ".json" and _first_byte(file) == b"[":
        return _read_json_array(file)
    return _read_lines(file)


def _first_byte(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(4096).lstrip()[:1]


def _read_lines(file: Path) -> Iterator[DataRow | BadRow]:
    with file.open("rb") as stream:
        line = 0
        while data := stream.readline(MAX_ROW_BYTES + 1):
            line += 1
            if len(data) > MAX_ROW_BYTES:
                _skip_line(stream, data)
                yield BadRow(str(file), line, "", f"the row is larger than {MAX_ROW_BYTES} bytes")
            elif data.strip():
                yield _parse(file, line, data)


def _skip_line(stream: BinaryIO, data: bytes) -> None:
    while data and not data.endswith(b"\n"):
        data = stream.readline(MAX_ROW_BYTES)


def _parse(file: Path, line: int, data: bytes) -> DataRow | BadRow:
    try:
        value = json.loads(data.decode("utf-8-sig" if line == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return BadRow(str(file), line, "", f"invalid UTF-8 at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return BadRow(str(file), line, "", f"malformed JSON: {error}")
    if not isinstance(value, dict):
        return BadRow(str(file), line, "", f"a row must be a JSON object, got {type(value).__name__}")
    return DataRow(str(file), line, value)


def _read_json_array(file: Path) -> Iterator[DataRow | BadRow]:
    try:
        values = json.loads(file.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: malformed JSON: {error}", code="E4010") from error
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            yield DataRow(str(file), number, value)
        else:
            yield BadRow(str(file), number, "", f"a row must be a JSON object, got {type(value).__name__}")


def _read_csv(file: Path) -> Iterator[DataRow | BadRow]:
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        reader = csv.DictReader(stream, strict=True)
        try:
            for row in reader:
                if None in row or any(value is None for value in row.values()):
                    yield BadRow(str(file), reader.line_num, "", "the row has not as many cells as the header")
                else:
                    yield DataRow(str(file), reader.line_num, dict(row))
        except csv.Error as error:
            raise DataError(f"{file}:{reader.line_num}: malformed CSV: {error}", code="E4010") from error


def _read_parquet(file: Path) -> Iterator[DataRow | BadRow]:
    # Imported late: `trinity validate` reads parquet only where pyarrow is installed.
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        refuse_bomb(file)
        with pyarrow.parquet.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(batch_size=1000):
                for values in batch.to_pylist():
                    number += 1
                    yield DataRow(str(file), number, values)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: not a readable parquet file ({str(error).splitlines()[0]}); copy it again", code="E4060"
        ) from error
