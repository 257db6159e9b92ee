"""The names by which a model is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

_SNAPSHOT = re.compile(r".*/models--([^/]+)--([^/]+)/snapshots/[^/]+/?")


def served_names(path: str, *others: str | None) -> tuple[str, ...]:
    """Return the names of a model: its folder's or hub id's, and `others`.

    A folder of the hub's cache is known by its hub id, too.
    """
    found: Iterable[str] = (path, PurePath(path).name)
    snapshot = _SNAPSHOT.fullmatch(path)
    if snapshot is not None:
        found = (path, "/".join(snapshot.groups()), snapshot[2])
    return tuple(dict.fromkeys(name for name in (*others, *found) if name))
