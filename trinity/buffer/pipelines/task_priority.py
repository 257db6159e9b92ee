"""Order of tasks by the statistics of Data-Juicer's operators."""

from __future__ import annotations

import numbers
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRIORITY_WEIGHTS: Mapping[str, float] = {"difficulty": -0.7, "diversity": 0.8, "usage_frequency": -0.5, "quality": 1.0}
"""The published weights."""

NEUTRAL = 0.5
_USED = "consumed_cnt"


@dataclass(frozen=True)
class Scale:
    """How a statistic is scaled to a score of a dimension, in [0, 1].

    Attributes:
        is_inverse: a smaller value means a higher score.
        top: the value with score 1, where 0 has score 0; None: the range is that of the tasks' values.
    """

    is_inverse: bool = False
    top: float | None = 1.0


# Statistics of Data-Juicer by the dimension that they measure; others do not influence the order.
SCALES: Mapping[str, Mapping[str, Scale]] = {
    "quality": {
        "llm_quality_score": Scale(),
        "alnum_ratio": Scale(),
        "stopwords_ratio": Scale(),
        "char_rep_ratio": Scale(is_inverse=True),
        "word_rep_ratio": Scale(is_inverse=True),
        "special_char_ratio": Scale(is_inverse=True),
        "flagged_words_ratio": Scale(is_inverse=True),
    },
    "difficulty": {
        "llm_difficulty_score": Scale(),
        "lang_score": Scale(is_inverse=True),
        "perplexity": Scale(top=None),
    },
    "diversity": {"diversity_score": Scale()},
}


def dimension_scores(stats: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return quality, difficulty and diversity of each task, in [0, 1].

    A dimension is the mean of its statistics; one that has none is absent.
    """
    ranges = {
        name: (min(values), max(values))
        for name in {name for scales in SCALES.values() for name in scales}
        if (values := [float(own[name]) for own in stats if _is_number(own.get(name))])
    }
    return [_dimensions(own, ranges) for own in stats]


def _dimensions(stats: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    found = {}
    for dimension, scales in SCALES.items():
        shares = []
        for name, scale in scales.items():
            if not _is_number(stats.get(name)):
                continue
            low, high = ranges[name] if scale.top is None else (0.0, scale.top)
            share = (float(stats[name]) - low) / (high - low) if high > low else NEUTRAL
            shares.append(1.0 - share if scale.is_inverse else share)
        if shares:
            found[dimension] = sum(shares) / len(shares)
    return found


def priorities(stats: Sequence[Mapping[str, Any]], weights: Mapping[str, float]) -> list[float] | None:
    """Return the priority of each task; None where no statistic orders them.

    It is the weighted sum of the dimensions, where an absent one counts as 0.5, and of how often a task was used.
    """
    scores = dimension_scores(stats)
    if not any(scores) and not any(_is_number(own.get(_USED)) for own in stats):
        return None
    found = []
    for own, dimensions in zip(stats, scores, strict=True):
        used = float(own[_USED]) if _is_number(own.get(_USED)) else 0.0
        total = weights.get("usage_frequency", 0.0) * used
        found.append(total + sum(weights.get(name, 0.0) * dimensions.get(name, NEUTRAL) for name in SCALES))
    return found


def ordered(
    priority: Sequence[float] | None, num_tasks: int, *, method: str, top_k: int = -1, layers: int = 3, seed: int = 0
) -> list[int]:
    """Return the numbers of the tasks in their new order.

    Args:
        priority: priority of each task; None: `sort` and `folding` leave the tasks in their order.
        num_tasks: how many there are.
        method: sort (highest priority first, equal ones as they came), shuffle, keep, or folding (each layer goes from
            high to low priority: arXiv:2506.21545).
        top_k: number of tasks to keep, the first of the order (before folding); -1: all.
        layers: number of layers of folding.
        seed: seed of shuffle.
    """
    numbers_ = list(range(num_tasks))
    if method == "shuffle":
        random.Random(seed).shuffle(numbers_)
    elif priority is not None and method in ("sort", "folding"):
        numbers_.sort(key=lambda number: -priority[number])
    kept = numbers_ if top_k < 0 else numbers_[:top_k]
    if method == "folding" and priority is not None:
        return [number for layer in range(layers) for number in kept[layer::layers]]
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value
