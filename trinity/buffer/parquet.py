"""How much memory the rows of a parquet file take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity.common.errors import DataError
from trinity.utils.memory import shown_bytes

_VALUE_BYTES = 8
_TEXT = "BYTE_ARRAY"


def refuse_bomb(file: Path) -> None:
    """Refuse a file whose rows do not fit into memory.

    A small file can hold far more data than its size: pages are compressed, and a repeated value is stored once. So the
    decoded size is computed before the first row is made. Page sizes are taken from the file's footer; the reader fails
    at a page that is larger than the footer says.

    Raises:
        DataError: the rows take more memory than is free (E4060).
        pyarrow.ArrowException: the file cannot be read.
        OSError: likewise.
    """
    import psutil
    import pyarrow.parquet

    free = psutil.virtual_memory().available
    footer = pyarrow.parquet.read_metadata(file)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [[group.column(number) for number in range(group.num_columns)] for group in groups]
    size = sum(max(each.total_uncompressed_size, each.num_values * _VALUE_BYTES) for group in chunks for each in group)
    _check(file, size, free)
    for number, group in enumerate(chunks):
        repeated = [each.path_in_schema for each in group if _may_repeat(each, free)]
        if repeated:
            reader = pyarrow.parquet.ParquetFile(file, read_dictionary=repeated)
            with reader:
                table = reader.read_row_group(number, columns=repeated)
            size += sum(decoded_bytes(chunk) for column in table.columns for chunk in column.chunks)
            _check(file, size, free)


def _check(file: Path, size: int, free: int) -> None:
    if size > free:
        raise DataError(
            f"{file}: its rows take {shown_bytes(size)} of memory when they are decoded, and {shown_bytes(free)} are "
            "free; split it, or check the program that wrote it",
            code="E4060",
        )


def _may_repeat(chunk: Any, free: int) -> bool:
    """Return whether texts of a column may take more than `free` bytes."""
    is_encoded = any("DICTIONARY" in encoding for encoding in chunk.encodings)
    return chunk.physical_type == _TEXT and is_encoded and chunk.num_values * chunk.total_uncompressed_size > free


def decoded_bytes(array: Any) -> int:
    """Return the bytes of all texts in an array, repeated ones too."""
    import pyarrow
    import pyarrow.compute

    if pyarrow.types.is_dictionary(array.type):
        lengths = pyarrow.compute.cast(pyarrow.compute.binary_length(array.dictionary), pyarrow.int64())
        counts = pyarrow.compute.value_counts(array.indices.drop_null())
        sizes = pyarrow.compute.multiply(lengths.take(counts.field("values")), counts.field("counts"))
        return int(pyarrow.compute.sum(sizes).as_py() or 0)
    if pyarrow.types.is_struct(array.type):
        return sum(decoded_bytes(array.field(number)) for number in range(array.type.num_fields))
    if pyarrow.types.is_list(array.type) or pyarrow.types.is_large_list(array.type):
        return decoded_bytes(array.flatten())
    return 0
