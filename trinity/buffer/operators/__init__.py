"""Experience operators: what happens to the experiences of an explore step before they are stored.

The table of contents imports no torch; a class is imported when it is first asked for.
"""

from __future__ import annotations

from trinity.buffer.operators.experience_operator import ExperienceOperator, ExperienceOperatorV1
from trinity.utils.registry import Entry, Registry

_FILTERS = "trinity.buffer.operators.filters"
_MAPPERS = "trinity.buffer.operators.mappers"

OPERATOR_CONTENTS: dict[str, Entry] = {
    "reward_filter": Entry(
        f"{_FILTERS}:RewardFilter", {"threshold": 0.0}, doc="Keeps experiences whose reward is at least `threshold`."
    ),
    "reward_std_filter": Entry(
        f"{_FILTERS}:RewardSTDFilter",
        {"threshold": 0.0},
        doc="Drops groups of one, and groups whose rewards have a standard deviation of at most `threshold`.",
    ),
    "invalid_reward_filter": Entry(
        f"{_FILTERS}:InvalidRewardFilter", doc="Drops experiences whose reward is missing or not finite."
    ),
    "dapo_dynamic_sampling": Entry(
        f"{_FILTERS}:DAPODynamicSampling",
        {"metric_key": "accuracy", "correct_threshold": 0.0},
        doc="Keeps groups that are neither all correct nor all wrong (DAPO, arXiv 2503.14476, eq. 11).",
    ),
    "mask_response_truncated": Entry(
        f"{_MAPPERS}:MaskResponseTruncated",
        doc="Takes the tokens of truncated responses out of the loss (DAPO, arXiv 2503.14476, section 3.4).",
    ),
    "reward_shaping_mapper": Entry(
        f"{_MAPPERS}:RewardShapingMapper",
        {"reward_shaping_configs": None},
        doc="Adds, subtracts, multiplies by or divides by weighted entries of `info`.",
    ),
}

EXPERIENCE_OPERATORS = Registry("experience operator", OPERATOR_CONTENTS)

__all__ = ["EXPERIENCE_OPERATORS", "OPERATOR_CONTENTS", "ExperienceOperator", "ExperienceOperatorV1"]
