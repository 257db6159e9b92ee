"""The environment of the process, changed for a while."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from trinity.utils.environment import environment

CHANGES = ("os.putenv", "os.unsetenv")
_heard: list[tuple[str, bytes]] = []
_hears = False


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if _hears and event in CHANGES and args[0] != b"PYTEST_CURRENT_TEST":
        _heard.append((event, args[0]))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """What is changed of C's environment; a hook stays in the process, so that it is switched off."""
    monkeypatch.setattr(sys.modules[__name__], "_hears", False)
    sys.addaudithook(_hear)
    monkeypatch.setenv("OWN_KEPT", "kept")
    monkeypatch.setenv("OWN_CHANGED", "old")
    monkeypatch.delenv("OWN_NEW", raising=False)
    _heard.clear()
    monkeypatch.setattr(sys.modules[__name__], "_hears", True)
    return _heard


def test_a_block_touches_what_differs_and_nothing_else(heard: list[tuple[str, bytes]]) -> None:
    before = dict(os.environ)
    with environment({"OWN_KEPT": "kept", "OWN_CHANGED": "new", "OWN_NEW": "1"}):
        assert (os.environ["OWN_CHANGED"], os.environ["OWN_NEW"]) == ("new", "1")
    assert dict(os.environ) == before
    assert heard == [
        ("os.putenv", b"OWN_CHANGED"),
        ("os.putenv", b"OWN_NEW"),
        ("os.unsetenv", b"OWN_NEW"),
        ("os.putenv", b"OWN_CHANGED"),
    ]


def test_what_is_changed_in_a_block_is_undone_whatever_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEPT", "kept")
    monkeypatch.delenv("OWN_LEFT", raising=False)
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), environment({}):
        os.environ["OWN_LEFT"] = "by a library"
        del os.environ["OWN_KEPT"]
        raise ZeroDivisionError
    assert dict(os.environ) == before
