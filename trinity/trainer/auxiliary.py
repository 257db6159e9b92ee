"""Datasets that a sample strategy reads beside the experience buffer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from trinity.buffer.dataset_reader import DatasetReader
from trinity.common.config import Config
from trinity.common.errors import ConfigError


def open_auxiliary(
    config: Config, names: Iterable[str], *, tokenizer: PreTrainedTokenizerBase
) -> dict[str, DatasetReader]:
    """Return a reader without end for each named auxiliary buffer.

    Args:
        config: resolved configuration.
        names: keys of `buffer.trainer_input.auxiliary_buffers`.
        tokenizer: with its chat template.

    Raises:
        ConfigError: no auxiliary buffer of that name (E1843).
        DataError: the dataset cannot be used (E4001 to E4060).
    """
    buffers = config.buffer.trainer_input.auxiliary_buffers
    readers = {}
    for name in names:
        if name not in buffers:
            raise ConfigError(
                f"algorithm.sample_strategy {config.algorithm.sample_strategy} reads the auxiliary buffer {name!r}, "
                f"which buffer.trainer_input.auxiliary_buffers does not have; it has {', '.join(buffers) or 'none'}",
                code="E1843",
            )
        limit = config.model.max_model_len
        reader = DatasetReader(buffers[name], tokenizer=tokenizer, seed=config.seed, max_length=limit, total_epochs=0)
        reader.write_quarantine(Path(config.checkpoint_job_dir) / "buffer" / "quarantine")
        readers[name] = reader
    return readers
