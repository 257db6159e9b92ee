"""Rules of paths that are databases."""

from __future__ import annotations

import os
from pathlib import Path

from trinity.common.config.keys import Key
from trinity.common.config.resolution import Resolution

_DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")


def resolve_database(resolution: Resolution, key: Key[str | tuple[str, ...] | None]) -> None:
    """Make the path of rows that are read from a database an absolute URL."""
    if has_several(resolution, key):
        return
    path = str(resolution.get(key))
    url = absolute_url(path, resolution.cwd)
    if is_database(url) and not path.lower().endswith(_DATA_SUFFIXES):
        resolution.derive(key, url, "a relative database is relative to the working directory")
        return
    resolution.problem(
        "E1829",
        key,
        f"`{key}` is no database",
        rule="sqlite:///<file> or postgresql://user@host/database",
        suggestion=f"write `path: sqlite:///{Path(path).stem or 'data'}.db`, or `storage_type: file` for data files",
    )


def has_several(resolution: Resolution, key: Key[str | tuple[str, ...] | None]) -> bool:
    """Refuse a list where there is one database; return whether it was one."""
    if not isinstance(resolution.get(key), tuple | list):
        return False
    resolution.problem(
        "E1889",
        key,
        f"`{key}` is a list, and these rows are in one database",
        rule="one database; a list of files, folders and hub ids with `storage_type: file`",
        suggestion="write one of them; several tables of tasks are entries of `buffer.explorer_input.tasksets`",
    )
    return True


def absolute_url(path: str, cwd: Path) -> str:
    """Return a database URL; make the path of a SQLite file absolute."""
    if "://" not in path:
        return f"sqlite:///{os.path.normpath(cwd / Path(path).expanduser())}"
    scheme, _, rest = path.partition("://")
    if not scheme.startswith("sqlite") or rest in ("", "/", "/:memory:"):
        return path
    file, mark, query = rest[1:].partition("?")
    return f"{scheme}:///{os.path.normpath(cwd / file)}{mark}{query}"


def is_database(url: str) -> bool:
    """Return whether a URL names a usable database: SQLite file or PostgreSQL."""
    scheme, _, rest = url.partition("://")
    backend = scheme.partition("+")[0]
    file = rest[1:].partition("?")[0]
    return backend == "postgresql" or (backend == "sqlite" and file not in ("", ":memory:") and file[:5] != "file:")
