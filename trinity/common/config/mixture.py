"""Sizes of training batches with expert rows, for config and trainer."""

from __future__ import annotations

import math
from fractions import Fraction

# Arguments of the mixed losses that repeat what the rest of the configuration says.
DERIVED_ARGUMENTS = (
    "use_dynamic_bsz",
    "ppo_mini_batch_size",
    "ppo_micro_batch_size_per_gpu",
    "ngpus_trainer",
    "train_batch_size_usual",
    "train_batch_size_expert",
)


def num_expert_rows(expert_data_ratio: float, batch_size: int) -> int:
    """Return ceil(`expert_data_ratio` x `batch_size`).

    The ratio is taken as the decimal number that was written.

    Raises:
        ValueError: the ratio is outside [0, 1), or leaves no row that is not the expert's.
    """
    if isinstance(expert_data_ratio, bool) or not 0 <= expert_data_ratio < 1:
        raise ValueError(f"expert_data_ratio must be in [0, 1), got {expert_data_ratio}")
    count = math.ceil(Fraction(str(expert_data_ratio)) * batch_size)
    if count >= batch_size:
        raise ValueError(
            f"expert_data_ratio {expert_data_ratio} makes all {batch_size} rows of a batch the expert's and leaves "
            "none for rollouts"
        )
    return count


def batch_size_for(num_usual: int, expert_data_ratio: float) -> int:
    """Return the smallest batch size with >= `num_usual` non-expert rows.

    Raises:
        ValueError: the ratio is outside [0, 1).
    """
    if isinstance(expert_data_ratio, bool) or not 0 <= expert_data_ratio < 1:
        raise ValueError(f"expert_data_ratio must be in [0, 1), got {expert_data_ratio}")
    # Of n rows floor((1 - ratio) n) are left: at least num_usual from n = num_usual / (1 - ratio) on.
    return math.ceil(num_usual / (1 - Fraction(str(expert_data_ratio))))
