"""When Python's garbage collector runs."""

from __future__ import annotations

import gc

import pytest

from trinity.runtime.collector import collecting_nothing


def test_the_collector_is_off_and_then_as_it_was() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="ended"), collecting_nothing():
        with collecting_nothing():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError("ended")
    assert gc.isenabled()
