"""The selector of a reader, which may be built in or a plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trinity.buffer.selector.data_source import DataSource
from trinity.buffer.selector.registry import SELECTORS
from trinity.buffer.selector.selector import make_selector
from trinity.common.config.buffer import DataSelectorConfig
from trinity.common.errors import WorkflowError
from trinity.utils.declaration import entry_of


def number_columns(settings: DataSelectorConfig) -> tuple[str, ...]:
    """Return the columns from which the selector reads numbers.

    There are none if the selector does not declare that it reads numbers: its `feature_keys` may then hold anything.
    """
    cls = SELECTORS.get(settings.selector_type)
    bounds = entry_of(cls, kind="selector").num_features if isinstance(cls, type) else None
    return () if bounds in (None, (0, 0)) else settings.feature_keys


class Selection:
    """Asks a selector for rows, and checks what it returns.

    Args:
        data_source: the dataset.
        settings: which selector, and its settings.
        seed: seed of the run, which is used if the settings have none.
        shuffle: choose `shuffle` in place of `sequential`.

    Attributes:
        selector: the selector.
        num_read: rows chosen so far, over all epochs.

    Raises:
        ConfigError: no selector of this name (E1701).
        DataError: the dataset is empty (E4002).
    """

    def __init__(
        self,
        data_source: DataSource,
        settings: DataSelectorConfig,
        *,
        seed: int | None = None,
        shuffle: bool = False,
    ) -> None:
        self.selector = make_selector(data_source, settings, seed=seed, shuffle=shuffle)
        self.num_read = 0
        self._num_rows = data_source.dataset_size

    def take(self, n: int) -> list[int]:
        """Return the next `n` rows, 0-based.

        Raises:
            WorkflowError: the selector returned something else (E5160).
        """
        if not n:
            return []
        returned = self.selector.get_indices(n)
        try:
            rows = [int(row) for row in returned]
        except (TypeError, ValueError):
            raise self._refusal(n, returned) from None
        if len(rows) != n or not all(0 <= row < self._num_rows for row in rows):
            raise self._refusal(n, returned)
        self.num_read += n
        return rows

    def feedback(self, **given: Any) -> None:
        """Pass results of rows to the selector: `indices` and `values`."""
        self.selector.feedback(**given)

    def state_dict(self) -> dict[str, Any]:
        """Return number of rows and state of the selector, as JSON values.

        Raises:
            WorkflowError: the state of the selector is no JSON value (E5161).
        """
        try:
            state = json.loads(json.dumps(self.selector.state_dict()))
        except (TypeError, ValueError) as error:
            name = type(self.selector).__name__
            raise WorkflowError(
                f"state_dict of the selector {name} must return a dict of JSON values: {error}; write arrays as lists",
                code="E5161",
            ) from error
        return {"num_read": self.num_read, "selector": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: the dataset or the selector changed (E7005).
        """
        self.selector.load_state_dict(state["selector"])
        # Older checkpoints hold the number in the state of the built-in selectors only.
        self.num_read = int(state.get("num_read", state["selector"].get("position", 0)))

    def _refusal(self, n: int, returned: Any) -> WorkflowError:
        return WorkflowError(
            f"get_indices({n}) of the selector {type(self.selector).__name__} must return {n} row numbers from 0 to "
            f"{self._num_rows - 1}, got {str(returned)[:100]}; begin again at row 0 at the end of the dataset",
            code="E5160",
        )
