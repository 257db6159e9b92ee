"""Rules of several tasksets that are explored for training in one run."""

from __future__ import annotations

from trinity.common.config.buffer import TasksetConfig
from trinity.common.config.keys import Key
from trinity.common.config.resolution import Resolution
from trinity.common.config.rules.tasksets import is_evaluated, tasksets, trained_tasksets


def check_taskset_mixture(resolution: Resolution) -> None:
    """Check that tasksets fit together: weights, repeats and temperatures."""
    if not resolution.explores:
        return
    trained = trained_tasksets(resolution)
    section = resolution.config.buffer.explorer_input
    is_mixture = section.taskset is None and len(section.tasksets) > 1
    for key in tasksets(resolution):
        if resolution.is_own(key.weight) and (is_evaluated(key) or not is_mixture):
            text = f"`{key.weight}` has no effect: it is the share among several tasksets that are trained on"
            resolution.problem("W1902", key.weight, text, suggestion="remove it")
    if not is_mixture:
        return
    _check_weights(resolution, trained)
    for key in trained[1:]:
        first = trained[0]
        _check_same(resolution, key.repeat_times, first.repeat_times, "every step has the same number of rollouts")
        own, other = key.rollout_args.temperature, first.rollout_args.temperature
        _check_same(resolution, own, other, "the trainer divides the logits of all rollouts by one temperature")


def _check_weights(resolution: Resolution, keys: list[Key[TasksetConfig]]) -> None:
    """Refuse weights beside numbers of rows, which are no common unit."""
    missing = [key for key in keys if resolution.get(key.weight) is None]
    if missing and len(missing) < len(keys):
        written = next(key for key in keys if key not in missing)
        resolution.problem(
            "E1894",
            missing[0].weight,
            f"`{missing[0].weight}` is missing, and `{written.weight}` is {resolution.get(written.weight)}",
            rule="a weight for each of the tasksets, or for none",
            involves=(written.weight,),
            suggestion="write `weight: 1`, or another share in the same unit",
        )


def _check_same(
    resolution: Resolution,
    key: Key[float | None] | Key[int | None],
    first: Key[float | None] | Key[int | None],
    why: str,
) -> None:
    own, other = resolution.get(key), resolution.get(first)
    if own != other:
        resolution.problem(
            "E1893",
            key,
            f"`{key}` is {own}, and `{first}` is {other}: {why}",
            rule="equal in all tasksets that are trained on",
            involves=(first,),
            suggestion=f"write {other} here, or {own} there",
        )
