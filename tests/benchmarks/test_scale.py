"""The scale benchmark: its whole path with tiny sizes, and the simulation with latencies that are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIMULATE = """\
import json, sys
sys.path.insert(0, "benchmarks")
from dataclasses import asdict
from scale_simulation import Plan, Simulation
from trinity.explorer.pacing import OverRollout
plans = json.loads(sys.argv[1])
found = []
for plan in plans:
    rule = OverRollout(plan.pop("ratio", 0.0), 0.0)
    slow = plan.pop("slow", 0.0)
    draw = lambda source: 100.0 if source.random() < slow else 10.0
    found.append(asdict(Simulation(Plan(**plan, over_rollout=rule), draw).run()))
print(json.dumps(found))
"""
SIZES = {"engines": 4, "slots": 2, "runners_per_engine": 1, "batch_size": 8, "repeat_times": 2, "steps": 6}
TIMES = {"train_s": 20.0, "sync_s": 0.0}


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def simulated(*plans: dict[str, Any]) -> list[dict[str, Any]]:
    return json.loads(python("-c", SIMULATE, json.dumps([SIZES | TIMES | plan for plan in plans])))


@pytest.mark.slow
def test_every_part_is_measured_and_drawn(tmp_path: Path) -> None:
    found = json.loads(python("benchmarks/scale.py", "--tiny", "--json", "--plot", str(tmp_path / "scale.png")))
    assert all(row["gb_per_s"] > 0 for row in found["weights"])
    assert [row["runners"] for row in found["scheduler"]] == [1, 16, 256]
    assert abs(found["store"]["payload_bytes"] - 8192) < 82 and found["store"]["all_per_s"] > 0
    assert len(found["simulation"]) == 2 * 8
    assert (tmp_path / "scale.png").read_bytes()[:4] == b"\x89PNG"


def test_the_simulation_gives_what_can_be_worked_out_by_hand() -> None:
    fixed, offset, paced, loose, synced = simulated(
        {}, {"offset": 1}, {"style": "fully_async", "max_staleness": 0}, {"style": "fully_async", "max_staleness": 2},
        {"sync_s": 5.0},
    )  # fmt: skip
    # 8 tasks of two samples on 4 engines of two slots: two waves of 10 s, then 20 s of training.
    assert fixed["wall_s"] == 6 * 40 and fixed["engine_frac"] == fixed["trainer_frac"] == 0.5
    assert set(fixed["staleness"]) == {0} and len(fixed["staleness"]) == 48
    # The second batch is explored while the first is trained, and so on: 20 s, then 20 s a step.
    assert offset["wall_s"] == 20 + 6 * 20 and sorted(set(offset["staleness"])) == [0, 1]
    assert paced["wall_s"] == fixed["wall_s"] and set(paced["staleness"]) == {0}
    assert loose["wall_s"] == offset["wall_s"] and max(loose["staleness"]) <= 2
    assert synced["wall_s"] == fixed["wall_s"] + 5 * 5


def test_tasks_that_are_not_waited_for_are_counted_and_what_they_cost_too() -> None:
    waiting, going = simulated({"slow": 0.2}, {"slow": 0.2, "ratio": 0.5})
    assert waiting["tasks_lost"] == 0 and waiting["wasted_frac"] == 0
    assert going["tasks_lost"] == 48 - len(going["staleness"]) > 0
    assert going["wasted_frac"] > 0 and going["wall_s"] < waiting["wall_s"]
    assert going["engine_frac"] + going["wasted_frac"] <= 1
