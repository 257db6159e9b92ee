"""Priority functions of a replay buffer.

They set the order in which rollouts are handed out, and which rollouts are handed out again.

A plugin adds its own with `@PRIORITY_FUNC.register_module("name")` on a subclass of `PriorityFunction`.
"""

from __future__ import annotations

from trinity.buffer.priority.priority import PriorityFunction, ReplayItem
from trinity.buffer.priority.registry import PRIORITY_CONTENTS, PRIORITY_FUNC

__all__ = ["PRIORITY_CONTENTS", "PRIORITY_FUNC", "PriorityFunction", "ReplayItem"]
