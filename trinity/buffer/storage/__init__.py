"""Published import path of the priority functions of a replay buffer."""

from __future__ import annotations

from trinity.buffer.priority import PRIORITY_FUNC, PriorityFunction

__all__ = ["PRIORITY_FUNC", "PriorityFunction"]
