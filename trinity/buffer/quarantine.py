"""Rows that are left out of training.

They are counted and written to a file; above a limit they are an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from trinity.buffer.rows import BadRow
from trinity.common.errors import DataError
from trinity.utils.log import get_logger

MAX_BAD_ROW_RATIO = 0.01

_logger = get_logger("buffer")


def num_admitted(num_rows: int, *, max_bad_row_ratio: float) -> int:
    """Return how many of `num_rows` rows may be left out."""
    return max(1, int(max_bad_row_ratio * num_rows)) if max_bad_row_ratio > 0 else 0


def admit(bad: Sequence[BadRow], *, num_rows: int, max_bad_row_ratio: float, name: str) -> None:
    """Log the rows that are left out; refuse too many of them.

    Args:
        bad: rows left out.
        num_rows: all rows, good and bad.
        max_bad_row_ratio: in [0, 1]; one bad row is always admitted unless it is 0.
        name: the dataset.

    Raises:
        DataError: more bad rows than allowed, with the code of the first; or no good row at all (E4002).
    """
    if not bad:
        return
    allowed = num_admitted(num_rows, max_bad_row_ratio=max_bad_row_ratio)
    share = f"{len(bad)} of {num_rows} rows"
    if len(bad) > allowed:
        raise DataError(
            f"dataset {name!r}: {share} cannot be used (at most {allowed} may be left out, "
            f"buffer.max_bad_row_ratio {max_bad_row_ratio:g}); the first: {bad[0]}",
            code=bad[0].code,
        )
    if len(bad) == num_rows:
        raise DataError(f"dataset {name!r}: none of its {num_rows} rows can be used; the first: {bad[0]}", code="E4002")
    _logger.warning("dataset %r: %s left out; the first: %s", name, share, bad[0])


def write_quarantine(bad: Sequence[BadRow], folder: Path, *, name: str) -> Path | None:
    """Write the rows that are left out to `<folder>/<name>.jsonl`.

    Return the file, or None if no row is left out.
    """
    if not bad:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in bad), encoding="utf-8")
    return file
