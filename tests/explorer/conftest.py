"""Fixtures of the explorer's tests."""

from __future__ import annotations

import pytest

from tests.explorer.rollouts import Rollouts


@pytest.fixture(scope="session")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Rollouts:
    """Rollouts over one tiny model."""
    return Rollouts(tmp_path_factory.mktemp("rollouts"))
