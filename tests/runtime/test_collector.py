"""When Python's garbage collector runs."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from trinity.runtime.collector import collecting_nothing

# Of what was made in the block nothing is looked at when the collector is on again; what comes later is.
MAKES = """
import gc
from trinity.runtime.collector import collecting_nothing
looked, cycles = [], []
gc.callbacks.append(lambda phase, facts: looked.append(facts["generation"]) if phase == "stop" else None)
with collecting_nothing():
    kept = [[number] for number in range(200_000)]
assert looked == [], looked
assert gc.get_freeze_count() > 200_000
for _ in range(100):
    later = []
    later.append(later)
    del later
found = gc.collect()
assert 100 <= found < 10_000, found
"""


def test_the_collector_is_off_and_then_as_it_was() -> None:
    thawed = gc.get_freeze_count()
    assert gc.isenabled()
    try:
        with pytest.raises(ValueError, match="ended"), collecting_nothing():
            with collecting_nothing():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise ValueError("ended")
        assert gc.isenabled()
    finally:
        if not thawed:
            gc.unfreeze()


def test_what_was_made_meanwhile_is_never_looked_at() -> None:
    subprocess.run([sys.executable, "-c", MAKES], check=True, timeout=270)
