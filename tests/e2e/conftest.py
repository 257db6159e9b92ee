"""One finished short run, shared by the tests that only look at what it left, and a plugin for runs of a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.plugin_texts import REWARD, STEPWISE
from tests.e2e.ray_run import STEPS, own_cluster, steps
from tests.e2e.short_run import ShortRun
from tests.e2e.test_algorithms import finish
from tests.e2e.tiny_run import TinyRun
from tests.stores import bucket, s3_server  # noqa: F401


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reward function `share_of_digits`; one folder, because a process loads a plugin once."""
    folder = tmp_path_factory.mktemp("plugins_of_algorithms")
    (folder / "share_of_digits.py").write_text(REWARD)
    (folder / "digits_step_by_step.py").write_text(STEPWISE)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A real Ray cluster of one machine."""
    with own_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """The run of `ray_run.steps` in one process, to its end."""
    run = steps(tmp_path_factory.mktemp("whole"))
    finish(run, plugins, steps=STEPS)
    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    """A short quickstart that ran to its end."""
    run = ShortRun.make(tmp_path_factory.mktemp("finished") / "quickstart")
    status, output = run.finish(is_real=True)
    assert status == 0, output
    (run.folder / "output.txt").write_text(output)
    return run


@pytest.fixture
def fresh(tmp_path) -> ShortRun:
    """A prepared folder in which nothing ran yet."""
    return ShortRun.make(tmp_path / "quickstart")
