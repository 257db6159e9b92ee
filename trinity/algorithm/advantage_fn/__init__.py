"""Advantage functions; the built-ins are listed in `trinity.algorithm.ADVANTAGE_CONTENTS`."""

from __future__ import annotations

from trinity.algorithm.advantage_fn.advantage_fn import AdvantageFn, GroupAdvantage

__all__ = ["AdvantageFn", "GroupAdvantage"]
