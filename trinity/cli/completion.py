"""What the shell offers: keys and values, algorithms, codes, jobs.

The shells' scripts are typer's (`trinity --install-completion`). In bash a word ends at `=`, so that what follows it is
a word of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trinity import __version__
from trinity.utils.caches import cache_dir
from trinity.utils.disk import write_atomically

MOST_FOLDERS = 2000
PACKAGE = Path(__file__).resolve().parents[1]
_STAGE, _ITEM = re.compile(r"^stages\[\d+\]\."), re.compile(r"\[\d+\]")


def set_words(incomplete: str) -> list[str]:
    """Return `key=` or `key=value` for a beginning of `--set`."""
    name, sign, value = incomplete.partition("=")
    if sign:
        return [f"{name}={each}" for each in _values(name) if each.startswith(value)]
    found = sorted(key for key in _keys() if key.startswith(name))
    return [f"{found[0]}={each}" for each in _values(found[0]) or [""]] if len(found) == 1 else found


def words(incomplete: str) -> list[str]:
    """Return overrides that stand alone, and values after a `=` in bash.

    A name of a file is left to the shell.
    """
    key = _key_before()
    if key:
        return [each for each in _values(key) if each.startswith(incomplete)]
    return set_words(incomplete) if incomplete and "/" not in incomplete else []


def _key_before() -> str:
    """Return the key whose value bash wants; empty: it wants something else."""
    try:
        typed, at = shlex.split(os.environ.get("COMP_WORDS", "")), int(os.environ.get("COMP_CWORD", "0"))
    except ValueError:  # an open quote
        return ""
    return next((typed[sign - 1] for sign in (at, at - 1) if 1 < sign < len(typed) and typed[sign] == "="), "")


def algorithm_names(incomplete: str) -> list[str]:
    """Return the algorithm types that begin so."""
    return [name for name in _values("algorithm.algorithm_type") if name.startswith(incomplete)]


def reward_names(incomplete: str) -> list[str]:
    """Return the reward functions that begin so."""
    return [name for name in _values("buffer.explorer_input.default_reward_fn_type") if name.startswith(incomplete)]


def codes_and_keys(incomplete: str) -> list[str]:
    """Return codes or metrics, of which the beginning is given, or keys."""
    if incomplete[:1] in ("E", "W"):
        from trinity.explain.code_messages import all_codes

        return sorted(code for code in all_codes() if code.startswith(incomplete))
    if "/" in incomplete:
        from trinity.explain.metrics import groups

        names = [each.name for group in groups() for each in group.metrics if "<" not in each.name]
        return sorted(name for name in names if name.startswith(incomplete))
    return sorted(key for key in _keys() if key.startswith(incomplete))


def jobs(incomplete: str) -> list[str]:
    """Return the folders of jobs that begin so.

    They are looked for below the folder that is written.

    Of a large folder, only so many folders below it are looked at.
    """
    from trinity.launch.jobs import folders_below, is_job

    written = Path(incomplete)
    root = written if incomplete.endswith("/") else written.parent
    below = islice(folders_below(root), MOST_FOLDERS)
    return [str(folder) for folder in below if str(folder).startswith(incomplete) and is_job(folder)]


def _keys() -> Iterator[str]:
    """Yield the dotted names of all keys that hold a value."""
    return (key for key in _table() if "*" not in key)


def _values(name: str) -> list[str]:
    """Return the values of a key that can be listed; empty: any."""
    return sorted(_table().get(_ITEM.sub(".*", _STAGE.sub("", name)), []))


def _table() -> dict[str, list[str]]:
    """Return the values of all keys, from the cache if it is of this version.

    Reading the schema takes twice as long as all else of a completion. What cannot be cached is made again.
    """
    place, mark = cache_dir("completion") / "keys.json", _mark()
    try:
        cached = json.loads(place.read_text(encoding="utf-8"))
        if cached["mark"] == mark:
            table: dict[str, list[str]] = cached["keys"]
            return table
    except (OSError, ValueError, KeyError, TypeError):
        pass
    from trinity.explain.key_values import key_values

    made = key_values()
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, json.dumps({"mark": mark, "keys": made}))
    return made


def _mark() -> list[int | str]:
    """Return what changes with every change of a key or of a name."""
    files = [*(PACKAGE / "common" / "config").rglob("*.py"), *PACKAGE.glob("*/contents.json")]
    stats = [file.stat() for file in [*files, *PACKAGE.glob("*/*/contents.json")]]
    return [__version__, str(PACKAGE), sum(each.st_size for each in stats), max(each.st_mtime_ns for each in stats)]
