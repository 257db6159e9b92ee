"""Steps per hour, from the metrics of an earlier run of the same shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from trinity.common.config.keys import ACTOR, KEYS, ROLLOUT_MODEL, Key, path_of, value_of
from trinity.monitor.headline import STEP_TIME_NAMES
from trinity.monitor.jsonl import metrics_of
from trinity.monitor.monitor import METRICS_FILE

if TYPE_CHECKING:
    from trinity.common.config import Config

EXPLORE_STEP = "time/explore_step"
SHAPE: tuple[Key[Any], ...] = (
    KEYS.mode,
    KEYS.deterministic,
    KEYS.algorithm.algorithm_type,
    KEYS.algorithm.repeat_times,
    KEYS.model.max_prompt_tokens,
    KEYS.model.max_response_tokens,
    KEYS.buffer.batch_size,
    KEYS.buffer.train_batch_size,
    KEYS.trainer.num_workers,
    KEYS.cluster.gpu_per_node,
    KEYS.cluster.node_num,
    ROLLOUT_MODEL.engine_type,
    ROLLOUT_MODEL.engine_num,
    ROLLOUT_MODEL.tensor_parallel_size,
    ACTOR.ppo_mini_batch_size,
    ACTOR.ppo_epochs,
)
"""Keys that must be equal for two runs to take as long."""


@dataclass(frozen=True)
class StepSpeed:
    """How fast an earlier run was.

    Attributes:
        job: its folder.
        num_steps: steps that were timed.
        step_s: median of the wall seconds from one step to the next.
        per_hour: steps in an hour at that pace.
    """

    job: str
    num_steps: int
    step_s: float
    per_hour: float


def measured_speed(job_dir: Path) -> StepSpeed | None:
    """Return the pace of a job; None if it has not made three steps.

    A step is one of training, else of exploring. The first interval of a start, which loads models, is longer than the
    others and moves no median.
    """
    ends = list(_ends(job_dir, STEP_TIME_NAMES)) or list(_ends(job_dir, (EXPLORE_STEP,)))
    pauses = [after - before for before, after in zip(ends, ends[1:], strict=False) if after > before]
    if len(pauses) < 2:
        return None
    step_s = median(pauses)
    return StepSpeed(str(job_dir), len(pauses), step_s, 3600.0 / step_s)


def _ends(job_dir: Path, names: tuple[str, ...]) -> Iterator[float]:
    for line in metrics_of(job_dir / METRICS_FILE):
        if any(line.get(name) is not None for name in names) and isinstance(line.get("time"), int | float):
            yield float(line["time"])


def differences(config: Config, saved: Mapping[str, Any]) -> list[str]:
    """Return the keys of `SHAPE` in which an earlier run differs.

    Args:
        config: resolved configuration of the stage.
        saved: the values of the earlier run, as its `config.yaml` has them.
    """
    return [str(key) for key in SHAPE if value_of(config, key) != _value(saved, path_of(key))]


def _value(saved: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        saved = saved.get(part) if isinstance(saved, Mapping) else None
    return saved
