"""A fixed curriculum: rows in the order of a known difficulty."""

from __future__ import annotations

from trinity.buffer.selector.data_source import DataSource
from trinity.buffer.selector.features import features_of
from trinity.buffer.selector.registry import SELECTORS
from trinity.buffer.selector.selector import BaseSelector
from trinity.common.config.buffer import DataSelectorConfig


@SELECTORS.register_module("offline_easy2hard")
class OfflineEasy2HardSelector(BaseSelector):
    """Rows from the easiest to the hardest, in every epoch.

    Easy is what has large numbers in the columns `feature_keys`, such as pass rates of other models: rows are
    sorted by the first column, those with equal numbers by the next, and the rest stays in the order of the dataset.
    """

    arguments = {}
    num_features = (1, None)

    def __init__(self, data_source: DataSource, config: DataSelectorConfig) -> None:
        super().__init__(data_source, config)
        features = features_of(data_source, config, fewest=1)
        self._order = sorted(range(len(features)), key=lambda row: [-number for number in features[row]])

    def row_at(self, position: int) -> int:
        """Return the row taken at `position`."""
        return self._order[position % self.num_rows]
