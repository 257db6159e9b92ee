"""The scale benchmark: its whole path with tiny sizes, and the simulation with latencies that are known."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trinity.explorer.pacing import OverRollout

SIZES = {
    "engines": 4,
    "slots": 2,
    "runners_per_engine": 1,
    "batch_size": 8,
    "repeat_times": 2,
    "start": 0,
    "steps": 6,
    "end": 0,
}
TIMES = {"train_s": 20.0, "sync_s": 0.0}


@pytest.fixture(scope="module")
def scale(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("scale")


def simulated(scale: ModuleType, *, slow: float = 0.0, **plan: Any) -> Any:
    """Simulate; a sample takes 10 s, and a share of `slow` of them 100 s."""

    def draw(source: random.Random) -> float:
        return 100.0 if source.random() < slow else 10.0

    return scale.Simulation(scale.Plan(**(SIZES | TIMES | plan)), draw).run()


@pytest.mark.slow
def test_every_part_is_measured_and_drawn(scale: ModuleType, tmp_path: Path) -> None:
    found = scale.measure(scale.PARTS, tmp_path, is_tiny=True, rows=12_800)
    moved = {row["transport"].split(",")[0]: row["moved"] for row in found["weights"] if row["gb_per_s"] > 0}
    assert len(found["weights"]) == 7 and moved["checkpoint with delta"] < 0.6 < 1 == moved["checkpoint"]
    assert [row["runners"] for row in found["scheduler"]] == [1, 16, 256]
    assert abs(found["store"]["payload_bytes"] - 8192) < 82 and found["store"]["all_per_s"] > 0
    assert found["sides"]["rows"] == 384 and found["sides"]["per_s"] > 0
    assert [row["rows"] for row in found["history"]] == [128, 1280, 12_800]
    assert "| claim of 64 |" in scale.table(found) and not list(tmp_path.glob("*.db"))
    assert len(found["simulation"]) == 2 * len(scale.SETTINGS)
    assert scale.table(found).count("| heavy tail |") == len(scale.SETTINGS)
    scale.plot(found["simulation"], tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes()[:4] == b"\x89PNG"


def test_the_simulation_gives_what_can_be_worked_out_by_hand(scale: ModuleType) -> None:
    fixed = simulated(scale)
    # 8 tasks of two samples on 4 engines of two slots: two waves of 10 s, then 20 s of training.
    assert fixed.wall_s == 6 * 40 and fixed.engine_frac == fixed.trainer_frac == 0.5
    assert set(fixed.staleness) == {0} and len(fixed.staleness) == 48
    # The second batch is explored while the first is trained, and so on: 20 s, then 20 s a step.
    offset = simulated(scale, offset=1)
    assert offset.wall_s == 20 + 6 * 20 and sorted(set(offset.staleness)) == [0, 1]
    paced = simulated(scale, style="fully_async", max_staleness=0)
    assert paced.wall_s == fixed.wall_s and set(paced.staleness) == {0}
    loose = simulated(scale, style="fully_async", max_staleness=2)
    assert loose.wall_s == offset.wall_s and max(loose.staleness) <= 2
    assert simulated(scale, sync_s=5.0).wall_s == fixed.wall_s + 5 * 5


def test_the_middle_of_a_run_is_measured_where_tasks_begin_one_by_one(scale: ModuleType) -> None:
    plan = {"style": "fully_async", "in_flight": True, "max_staleness": 2, "max_inflight": 3}
    whole = simulated(scale, **plan)
    # The first batch takes 20 s; from then on the trainer has no gap.
    assert whole.wall_s == 20 + 6 * 20 and whole.tasks_lost == 0 and len(whole.staleness) == 48
    assert sum(whole.staleness) <= 2 * 48
    middle = simulated(scale, **plan, start=2, end=3)
    assert middle.wall_s == 6 * 20 and middle.trainer_frac == 1 and len(middle.staleness) == 48
    paused = simulated(scale, **plan, start=2, end=3, sync_s=5.0)
    # A step is 20 s of samples and 5 s in which they stand still: more than the trainer needs.
    assert paused.wall_s == 6 * 25 and (paused.engine_frac, paused.weights_frac) == (0.8, 0.2)


def test_slow_samples_hold_up_batches_but_not_tasks(scale: ModuleType) -> None:
    sizes = {"slow": 0.1, "batch_size": 32, "engines": 16, "runners_per_engine": 4, "train_s": 50.0}
    sizes |= {"start": 5, "steps": 20, "end": 5}
    together = simulated(scale, style="fully_async", max_staleness=2, max_inflight=3, **sizes)
    alone = simulated(scale, style="fully_async", max_staleness=2, max_inflight=3, in_flight=True, **sizes)
    assert together.trainer_frac < 0.85 < 0.95 < alone.trainer_frac
    assert alone.tasks_lost == together.tasks_lost == 0
    assert max(together.staleness) <= 2 < max(alone.staleness), "a task that others overtake is trained later"


def test_tasks_that_are_not_waited_for_are_counted_and_what_they_cost_too(scale: ModuleType) -> None:
    waiting = simulated(scale, slow=0.2)
    going = simulated(scale, slow=0.2, over_rollout=OverRollout(0.5, 0.0))
    assert waiting.tasks_lost == 0 and waiting.wasted_frac == 0
    assert going.tasks_lost == 48 - len(going.staleness) > 0
    assert going.wasted_frac > 0 and going.wall_s < waiting.wall_s
    assert going.engine_frac + going.wasted_frac <= 1
