"""What is told while a test runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from trinity.monitor import background, shipping


@pytest.fixture
def caught() -> Iterator[list[str]]:
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("trinity")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tracker try again soon, and give it long to start and to end: the machine may be busy."""
    monkeypatch.setattr(background, "START_S", 120.0)
    monkeypatch.setattr(background, "CLOSE_S", 120.0)
    monkeypatch.setattr(shipping, "PAUSES_S", (0.05, 0.2))
    monkeypatch.setattr(shipping, "POLL_S", 0.05)
