"""One finished short run, shared by the tests that only look at what it left."""

from __future__ import annotations

import pytest

from tests.e2e.short_run import ShortRun


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    """A short quickstart that ran to its end."""
    run = ShortRun.make(tmp_path_factory.mktemp("finished") / "quickstart")
    status, output = run.finish()
    assert status == 0, output
    (run.folder / "output.txt").write_text(output)
    return run


@pytest.fixture
def fresh(tmp_path) -> ShortRun:
    """A prepared folder in which nothing ran yet."""
    return ShortRun.make(tmp_path / "quickstart")
