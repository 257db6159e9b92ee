"""Frequency of Python's garbage collector in the processes of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (10_000, 10, 10)
"""Values for `gc.set_threshold`: new objects per collection of the youngest generation, then collections of a
generation per collection of the next one; Python's default: 700, 10, 10.

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
    """Keep the garbage collector off in a short block that makes objects.

    The objects that exist at its end are never examined later: otherwise the collector would go through all of them as
    soon as it is on again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()
