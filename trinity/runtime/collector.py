"""Frequency of Python's garbage collector in the processes of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (10_000, 10, 10)
"""Objects for one collection of the youngest, and such collections for one of the older ones; Python's: 700, 10, 10.

The modules of a run make half a million objects, all of which stay: with Python's numbers a fifth of their import is
spent on looking through them, and each full collection later holds the process for 0.2 s.
"""


def collect_seldom() -> None:
    """Make the garbage collector run one fourteenth as often.

    Objects outside of cycles are freed at once, as before.
    """
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Keep the garbage collector off while something short makes what stays.

    It never looks at what is there afterwards: else it would go through all of it as soon as it is on again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()
