"""The sample strategy of a run, made with either form of constructor."""

from __future__ import annotations

import inspect
from typing import Any

from trinity.algorithm import SAMPLE_STRATEGY
from trinity.algorithm.building import build
from trinity.algorithm.sample_strategy.reader import SourceReader
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.algorithm.sample_strategy.source import ExperienceSource
from trinity.buffer.buffer import reader_of_run
from trinity.common.config import Config
from trinity.common.experience import Experience

DEFAULT = "default"
Sampled = tuple[list[Experience], dict[str, float], list[dict[str, Any]]]


def make_strategy(config: Config, source: ExperienceSource, *, batch_size: int) -> SampleStrategy:
    """Return the configured strategy, which reads `source`.

    Raises:
        ConfigError: an unknown name (E1701), or arguments that it does not take (E1302).
    """
    algorithm = config.algorithm
    if not _takes_section(SAMPLE_STRATEGY.get(algorithm.sample_strategy or DEFAULT)):
        own: SampleStrategy = build(algorithm, "sample_strategy", source, default=DEFAULT, batch_size=batch_size)
        return own
    reader, buffer = SourceReader(source, batch_size=batch_size), config.buffer.trainer_input.experience_buffer
    with reader_of_run(buffer.name if buffer is not None else "", reader):
        published: SampleStrategy = build(algorithm, "sample_strategy", config.buffer, default=DEFAULT)
    published.attach(source, batch_size=batch_size, reader=reader)
    return published


async def sample(strategy: SampleStrategy, step: int) -> Sampled:
    """Return the batch of training step `step`; empty where no more can come."""
    strategy.exp_buffer.step = step
    try:
        return await strategy.sample(step)
    except StopAsyncIteration:  # published strategies raise it at the end
        return [], {}, []


def _takes_section(cls: type[SampleStrategy]) -> bool:
    first = next(iter(inspect.signature(cls).parameters.values()), None)
    return first is not None and first.kind is first.POSITIONAL_OR_KEYWORD and first.name != "source"
