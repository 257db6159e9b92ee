"""Options of the rollout correction: names and bounds.

Bounds are written as numbers or text. Imports no torch.
"""

from __future__ import annotations

import math

Threshold = float | int | str
LEVELS = ("token", "sequence")
LOSS_TYPES = ("ppo_clip", "reinforce")
REJECTIONS = (
    *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
)


def rejections(options: str) -> list[str]:
    """Return the names of `rollout_rs`, which commas separate.

    Raises:
        ValueError: an unknown name.
    """
    names = [name.strip() for name in options.split(",")]
    for name in names:
        if name not in REJECTIONS:
            raise ValueError(f"rollout_rs must be made of {', '.join(REJECTIONS)}, got {name!r}")
    return names


def rejection_bounds(options: str, given: Threshold | None) -> list[tuple[str, float, float]]:
    """Return name, least and largest value that is kept, of each rejection.

    For k1 the bounds are the logarithms of the ratios `low_high`, or of `1/u` and u for one number u; for the others
    there is no lower bound.

    Raises:
        ValueError: an unknown name, no threshold, one too few or many, or a band where one number is needed.
    """
    names = rejections(options)
    return [(name, *_bounds(name[-2:], part)) for name, part in zip(names, _parts(given, len(names)), strict=True)]


def band(threshold: Threshold, name: str) -> tuple[float | None, float]:
    """Return the lower bound, `None` without one, and the upper bound.

    Raises:
        ValueError: anything but one positive number, or two in rising order joined by an underscore.
    """
    problem = ValueError(f"{name} must be a positive number, or two in rising order as low_high, got {threshold!r}")
    if isinstance(threshold, bool):
        raise problem
    try:
        numbers = [float(part) for part in str(threshold).split("_")]
    except ValueError:
        raise problem from None
    if len(numbers) > 2 or not all(0 < number < math.inf for number in numbers) or numbers != sorted(numbers):
        raise problem
    return (None, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


def _parts(given: Threshold | None, count: int) -> list[Threshold]:
    if given is None:
        raise ValueError("rollout_rs needs rollout_rs_threshold, got none")
    parts: list[Threshold] = [part.strip() for part in given.split(",")] if isinstance(given, str) else [given]
    if len(parts) == 1:
        return parts * count
    if len(parts) != count:
        raise ValueError(f"rollout_rs_threshold must be one, or one for each of {count} options, got {given!r}")
    return parts


def _bounds(estimate: str, threshold: Threshold) -> tuple[float, float]:
    low, high = band(threshold, "rollout_rs_threshold")
    if estimate == "k1":
        if low is None and high < 1:
            raise ValueError(f"rollout_rs_threshold for k1 must be at least 1 or a band low_high, got {threshold!r}")
        return math.log(low if low is not None else 1.0 / high), math.log(high)
    if low is not None:
        raise ValueError(f"rollout_rs_threshold for {estimate} must be one number, got {threshold!r}")
    return -math.inf, high
