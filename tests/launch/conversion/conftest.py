"""A store of objects in memory."""

from __future__ import annotations

from tests.stores import memory  # noqa: F401
