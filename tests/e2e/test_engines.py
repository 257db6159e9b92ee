"""Several engines, and other ways to share out the rollouts, change no bit of what is learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import STEPS, finish, make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun

pytestmark = pytest.mark.slow

WAYS: dict[str, dict[str, Any]] = {
    "two engines": {"explorer__rollout_model__engine_num": 2},
    "one run a runner": {"explorer__max_repeat_times_per_runner": 1},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """A finished run of one engine."""
    run = make_run(tmp_path_factory.mktemp("plain"), {"algorithm_type": "grpo"})
    finish(run, plugins)
    return run


@pytest.mark.parametrize("way", WAYS)
def test_the_way_the_rollouts_are_made_changes_no_bit(tmp_path: Path, plugins: Path, plain: TinyRun, way: str) -> None:
    run = make_run(tmp_path, {"algorithm_type": "grpo"}).change(**WAYS[way])
    finish(run, plugins)
    assert final_weights(run, STEPS) == final_weights(plain, STEPS)
    assert comparable_metrics(run.job) == comparable_metrics(plain.job)
    last = run.lines("explorer")[-1]
    if way == "two engines":
        assert last["perf/engine/engines_serving"] == 2
        assert min(last[f"perf/engine/{index}/answered_requests"] for index in range(2)) > 0
