"""How often Python's garbage collector looks through what a process of a run holds."""

from __future__ import annotations

import gc

THRESHOLDS = (10_000, 10, 10)
"""Objects for one collection of the youngest, and such collections for one of the older ones; Python's: 700, 10, 10.

The modules of a run make half a million objects, all of which stay: with Python's numbers a fifth of their import is
spent on looking through them, and each full collection later holds the process for 0.2 s.
"""


def collect_seldom() -> None:
    """Let this process collect garbage a fourteenth as often; what no cycle holds is freed at once as ever."""
    gc.set_threshold(*THRESHOLDS)
