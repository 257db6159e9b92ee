"""What a preview says of bad rows."""

from __future__ import annotations

from collections.abc import Sequence

from trinity.buffer.rows import BadRow
from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding

ANY = 1.0
"""The ratio with which all bad rows are found, not those up to the first too many."""


def too_many_bad(bad: Sequence[BadRow], max_bad: int, *, key: str, where: str) -> Finding:
    """Return that a run refuses the data, with the code of the first row.

    Args:
        bad: the rows that cannot be used.
        max_bad: how many a run leaves out at most.
        key: of the data.
        where: what the data is called.
    """
    text = (
        f"{where}: {len(bad)} rows cannot be used, and a run leaves out {max_bad} at most "
        f"({KEYS.buffer.max_bad_row_ratio}): it would be refused; correct the rows, or raise the key"
    )
    return Finding(bad[0].code, key, text)
