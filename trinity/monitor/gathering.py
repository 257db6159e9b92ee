"""Metrics of many samples as statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STATISTICS = ("mean", "max", "min")


def gather_metrics(
    metric_list: Sequence[Mapping[str, Any]], prefix: str, output_stats: Sequence[str] = STATISTICS
) -> dict[str, float]:
    """Return `<prefix>/<name>/<statistic>` of every number in the metrics.

    A name that some samples lack has the statistics of the others. Values that are not numbers are left out.

    Args:
        metric_list: metrics by name, one mapping a sample.
        prefix: of the new names.
        output_stats: pandas' names of statistics.

    Raises:
        ValueError: pandas does not know a statistic.
    """
    import pandas

    if not metric_list:
        return {}
    numbers = pandas.DataFrame(list(metric_list)).select_dtypes(include="number")
    try:
        found = {statistic: numbers.agg(statistic) for statistic in output_stats}
    except AttributeError as error:
        raise ValueError(f"output_stats {list(output_stats)}: {error}") from error
    return {
        f"{prefix}/{name}/{statistic}": float(values[name])
        for name in numbers.columns
        for statistic, values in found.items()
    }
