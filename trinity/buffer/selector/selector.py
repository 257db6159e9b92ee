"""Built-in selectors and their base class.

All of them resume exactly from `state_dict`.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, ClassVar

from trinity.buffer.selector.data_source import DataSource, size_of
from trinity.buffer.selector.registry import SELECTORS
from trinity.common.config.buffer import DataSelectorConfig
from trinity.common.constants import DEFAULT_SEED
from trinity.common.errors import CheckpointError, DataError
from trinity.utils.declaration import Declared, declared_args


class BaseSelector(Declared):
    """Chooses the next rows of a dataset; the reader counts epochs.

    A selector overrides `get_indices`, `state_dict` and `load_state_dict`; or only `row_at`, if each choice depends on
    the position alone. In the first case its constructor need not call this one.

    Args:
        data_source: the dataset: `dataset_size` usable rows, which are `dataset[i]`; a column is `dataset[name]`.
        config: `seed` and further settings.

    Attributes:
        position: rows chosen so far, over all epochs.
        num_features: fewest and most columns of numbers that it reads (`config.feature_keys`), the latter None without
            a bound; None: it does not say.
        learns_from_feedback: what it chooses depends on `feedback`.

    Raises:
        DataError: the dataset is empty (E4002).
    """

    kind = "selector"
    num_features: ClassVar[tuple[int, int | None] | None] = None
    learns_from_feedback: ClassVar[bool] = False

    def __init__(self, data_source: DataSource | Sized, config: DataSelectorConfig) -> None:
        self.data_source = data_source
        self.config = config
        self.position = 0
        if self.num_rows == 0:
            raise DataError("cannot select from an empty dataset", code="E4002")

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return size_of(self.data_source)

    @property
    def seed(self) -> int:
        """The seed of the choice."""
        return DEFAULT_SEED if self.config.seed is None else self.config.seed

    def row_at(self, position: int) -> int:
        """Return the row taken at `position`, counted over all epochs from 0."""
        raise NotImplementedError(f"{type(self).__name__} must define get_indices, or row_at")

    def get_indices(self, batch_size: int, return_extra_info: bool = False) -> Any:
        """Return the 0-based indices of the next `batch_size` rows.

        With `return_extra_info`, also return a dict about the choice.
        """
        indices = [self.row_at(self.position + i) for i in range(batch_size)]
        self.position += batch_size
        return (indices, {}) if return_extra_info else indices

    def feedback(self, indices: Sequence[int], values: Sequence[float]) -> None:
        """Receive results of rows, such as the mean reward of their rollouts.

        This is called after each explore step whose operators return the metric `selector_metric`. By default nothing
        is learned.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to continue exactly, as JSON values."""
        return {"position": self.position, "seed": self.seed, "num_rows": self.num_rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: the dataset or the seed is not the one of the state (E7005).
        """
        for key, value in (("num_rows", self.num_rows), ("seed", self.seed)):
            if state_dict[key] != value:
                raise CheckpointError(
                    f"the checkpoint's data position was taken with {key} {state_dict[key]}, now it is {value}; "
                    "restore the dataset and the selector's settings, or start a new run",
                    code="E7005",
                )
        self.position = int(state_dict["position"])


def make_selector(
    data_source: DataSource | Sized, settings: DataSelectorConfig, *, seed: int | None = None, shuffle: bool = False
) -> BaseSelector:
    """Return the selector of a dataset.

    Args:
        data_source: the dataset.
        settings: which selector, and its settings.
        seed: seed of the run, which is used if the settings have none.
        shuffle: choose `shuffle` in place of `sequential`.

    Raises:
        ConfigError: no selector of this name (E1701).
        DataError: the dataset is empty (E4002).
    """
    if not size_of(data_source):
        raise DataError("cannot select from an empty dataset", code="E4002")
    name = "shuffle" if shuffle and settings.selector_type == "sequential" else settings.selector_type
    cls = SELECTORS.get(name)
    update = {
        "selector_type": name,
        "seed": seed if settings.seed is None else settings.seed,
        "kwargs": declared_args(cls, kind="selector") | settings.kwargs,
    }
    made: BaseSelector = cls(data_source, settings.model_copy(update=update))
    return made


@SELECTORS.register_module("sequential")
class SequentialSelector(BaseSelector):
    """Rows in the order of the dataset, in every epoch."""

    arguments = {}
    num_features = (0, 0)

    def row_at(self, position: int) -> int:
        """Return the row taken at `position`."""
        return position % self.num_rows


@SELECTORS.register_module("shuffle")
class ShuffleSelector(BaseSelector):
    """Every row once per epoch, permuted by seed and epoch."""

    arguments = {}
    num_features = (0, 0)

    def __init__(self, data_source: DataSource | Sized, config: DataSelectorConfig) -> None:
        super().__init__(data_source, config)
        self._epoch = -1
        self._order: list[int] = []

    def row_at(self, position: int) -> int:
        """Return the row taken at `position`."""
        epoch, place = divmod(position, self.num_rows)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = generator(self.seed, epoch).permutation(self.num_rows).tolist()
        return self._order[place]


@SELECTORS.register_module("random")
class RandomSelector(BaseSelector):
    """Rows drawn at random from the whole dataset.

    Each draw is a function of seed and position.
    """

    arguments = {}
    num_features = (0, 0)

    def row_at(self, position: int) -> int:
        """Return the row taken at `position`."""
        return int(generator(self.seed, position).integers(self.num_rows))


def generator(seed: int, place: int) -> Any:
    """Return the random generator of one choice, seeded by seed and place."""
    # Imported late: the table of contents of selectors must not load numpy.
    import numpy as np

    return np.random.default_rng([abs(seed), int(seed < 0), place])
