"""Published import path of the base of priority functions."""

from __future__ import annotations

from trinity.buffer.priority import PriorityFunction

__all__ = ["PriorityFunction"]
