"""Evaluations by checkpoint, taskset and metric, with standard errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_MEAN = re.compile(r"(?P<prefix>[^/]+/(?P<taskset>.+)/(?P<metric>[^/]+))/mean@(?P<runs>\d+)")
HEAD = ("checkpoint", "taskset", "metric", "mean", "standard error")


def table_lines(evaluations: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Return the lines of the table, none for no evaluation.

    Args:
        evaluations: the metrics of each by its training step; 0 is the initial model.
    """
    rows = [row for step in sorted(evaluations) for row in _rows(step, evaluations[step])]
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (HEAD, *rows)
    ]


def _rows(step: int, metrics: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    name = f"global_step_{step}" if step else "initial model"
    for key in sorted(metrics):
        found = _MEAN.fullmatch(key)
        if found is not None:
            error = metrics.get(f"{found['prefix']}/stderr@{found['runs']}")
            yield (
                name,
                found["taskset"],
                found["metric"],
                f"{metrics[key]:.4f}",
                "-" if error is None else f"{error:.4f}",
            )
