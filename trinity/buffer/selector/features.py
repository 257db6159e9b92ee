"""Columns of numbers that selectors order or choose rows by."""

from __future__ import annotations

from trinity.buffer.checks import feature_fault, feature_of, missing_features
from trinity.buffer.selector.data_source import DataSource
from trinity.common.config.buffer import DataSelectorConfig
from trinity.common.errors import ConfigError, DataError


def features_of(
    data_source: DataSource, config: DataSelectorConfig, *, fewest: int, most: int | None = None
) -> list[tuple[float, ...]]:
    """Return the numbers in the feature columns, one tuple a usable row.

    Args:
        data_source: the dataset.
        config: of the selector.
        fewest: columns that it needs, >= 1.
        most: columns that it can use; None: any number.

    Raises:
        ConfigError: too few or too many columns are named (E1891).
        DataError: the dataset lacks a column (E4004), or a row has no finite number there (E4013).
    """
    keys = config.feature_keys
    if len(keys) < fewest or (most is not None and len(keys) > most):
        rule = f"{fewest}" if most == fewest else f"at least {fewest}"
        raise ConfigError(
            f"selector {config.selector_type}: feature_keys must name {rule} columns of numbers, got {list(keys)}",
            code="E1891",
        )
    for fault in missing_features(keys, data_source.dataset.column_names):
        raise DataError(f"selector {config.selector_type}: {fault.reason}", code=fault.code)
    found = []
    for number, row in enumerate(data_source.dataset):
        bad = feature_fault(keys, row)
        if bad is not None:
            text = f"selector {config.selector_type}: row {number}: {bad.key} {bad.reason}"
            raise DataError(text, code=bad.code)
        found.append(tuple(feature_of(row[key]) or 0.0 for key in keys))
    return found
