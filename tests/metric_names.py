"""Every metric that a run of the tests writes has an entry of its own, with unit, step axis and meaning."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path

from trinity.explain.metrics import find

OF_A_LINE = {"actor", "seq", "step", "time"}


@functools.cache
def is_told(name: str, *, of_plugins: bool = False) -> bool:
    """Return whether a metric has an entry; one that leaves the name to plugins counts if `of_plugins`."""
    found = find(name)
    return found is not None and (of_plugins or not found.is_open)


def untold(files: Iterable[Path], *, of_plugins: bool = False) -> list[str]:
    """Return the metrics in files of `metrics.jsonl` that have no entry."""
    names: set[str] = set()
    for file in files:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):  # not torn by a kill
                names |= json.loads(line).keys()
    return sorted(name for name in names - OF_A_LINE if not is_told(name, of_plugins=of_plugins))


def assert_told(folder: Path, *, of_plugins: bool = False) -> None:
    """Assert that all metrics below a folder have an entry."""
    left = untold(folder.rglob("metrics.jsonl"), of_plugins=of_plugins)
    assert not left, f"no entry in trinity/explain/metrics.yaml: {left}"
