"""Checks experiences and makes them rows before they are appended."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from trinity.buffer.store.types import rollout_key
from trinity.common.errors import DataError
from trinity.common.experience import EID, Experience
from trinity.common.schema.sql_schema import READY, experience_values


def prepare(
    experiences: Sequence[Experience], tags: Mapping[str, Any], *, max_bytes: int
) -> tuple[list[Experience], list[dict[str, Any]]]:
    """Return the experiences sorted by id, and their rows with `tags`.

    One row of each rollout `is_first`: the first that can be trained, else the first.

    Raises:
        DataError: a reward is not a finite number (E5106), two experiences have one id (E5105), or a value
            cannot be stored (E5102).
    """
    ordered = in_order(experiences)
    for experience in ordered:
        _check_reward(experience)
    rows = [{**experience_values(experience, max_bytes=max_bytes), **tags, "is_first": 0} for experience in ordered]
    for before, after in itertools.pairwise(rows):
        if before["uid"] == after["uid"]:
            raise DataError(
                f"two experiences of one append have the id {after['uid']}; give every turn of a rollout its own "
                "eid.step",
                code="E5105",
            )
    first: dict[str, dict[str, Any]] = {}
    for experience, row in zip(ordered, rows, strict=True):
        key = rollout_key(experience)
        if key not in first or (first[key]["state"] != READY and row["state"] == READY):
            first[key] = row
    for row in first.values():
        row["is_first"] = 1
    return ordered, rows


def in_order(experiences: Sequence[Experience]) -> list[Experience]:
    """Return the experiences sorted by id, as the log has them."""
    return sorted(experiences, key=lambda experience: _order(experience.eid))


def _order(eid: EID) -> tuple[Any, ...]:
    return _rank(eid.batch), _rank(eid.task), eid.run, eid.step, eid.suffix


def _rank(part: int | str) -> tuple[int, int, str]:
    text = str(part)
    return (0, int(text), "") if text.isdigit() else (1, 0, text)


def _check_reward(experience: Experience) -> None:
    reward = experience.reward
    if reward is None:
        # Without log-probabilities nothing was sampled: the row is there to be imitated or compared.
        is_fine = experience.logprobs is None
    else:
        is_fine = isinstance(reward, Real) and not isinstance(reward, bool) and math.isfinite(reward)
    if not is_fine:
        raise DataError(
            f"task {experience.eid.tid}, run {experience.eid.run}: the reward must be a finite number, got {reward!r}; "
            "look at the workflow or reward function",
            code="E5106",
        )
