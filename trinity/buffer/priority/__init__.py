"""Priority functions: the order in which a replay buffer hands out rollouts, and which of them it hands out again.

A plugin adds its own with `@PRIORITY_FUNC.register_module("name")` on a subclass of `PriorityFunction`.
"""

from __future__ import annotations

from trinity.buffer.priority.priority import PriorityFunction, ReplayItem
from trinity.utils.registry import Entry, Registry

_PLACE = "trinity.buffer.priority.priority"
_LIMITED = Entry(
    f"{_PLACE}:DecayLimitRandomization",
    {"decay": 2.0, "use_count_limit": 3, "sigma": 0.0},
    doc="model_version - decay use_count + sigma N(0, 1); not again once it was used `use_count_limit` times.",
)

PRIORITY_CONTENTS: dict[str, Entry] = {
    "linear_decay": Entry(
        f"{_PLACE}:LinearDecay", {"decay": 2.0}, doc="model_version - decay use_count; used again without limit."
    ),
    "decay_limit_randomization": _LIMITED,
    "linear_decay_use_count_control_randomization": _LIMITED,
}

PRIORITY_FUNC = Registry("priority function", PRIORITY_CONTENTS)

__all__ = ["PRIORITY_CONTENTS", "PRIORITY_FUNC", "PriorityFunction", "ReplayItem"]
