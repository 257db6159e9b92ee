"""The benchmark of explorer and trainer at the same time, shortly: every setting trains all there is, and the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import trinity
from tests.loaded_plugins import forget_plugins
from trinity.summary.facts import latest_hf_model


@pytest.mark.nightly
def test_every_setting_trains_all_rollouts_of_a_tool_that_takes_time(
    tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    tasks, overlap = script("agent_tasks"), script("overlap")
    tasks.prepare(tmp_path, overlap.GAME, seed=42)
    imitation = tasks.imitation(tmp_path, overlap.GAME, seed=42)
    imitation["trainer"]["total_steps"] = 60
    trinity.run(imitation)
    start = latest_hf_model(tmp_path / "checkpoints" / "agents" / f"{overlap.GAME}_sft")
    for setting in overlap.SETTINGS:
        forget_plugins()
        tree = overlap.configured(tmp_path, setting, start=start, seed=42, steps=6, tool_s=0.05, is_tiny=True)
        trinity.run(tree)
        found = overlap.figures(tmp_path / "checkpoints" / "agents" / tree["name"], tree)
        assert (found["steps"], found["lost"]) == (6, 0) and found["step_s"] > 0
        assert found["age_mean"] == 0 if setting == overlap.BASE else 0 < found["age_mean"] <= 2


def test_the_table_compares_with_turns(script: Callable[[str], ModuleType]) -> None:
    found = {"step_s": 6.0, "before": 0.2, "after": 0.9, "age_mean": 0.0, "age_max": 0, "lost": 0}
    results = {42: {"in turns": found, "tasks one by one": found | {"step_s": 2.0, "age_mean": 1.5, "age_max": 4}}}
    lines = script("overlap").table(results).splitlines()
    assert lines[2] == "| 42 | in turns | 6.00 | 1.00 | 0.200 | 0.900 | 0.00 (0) | 0 |"
    assert lines[3] == "| 42 | tasks one by one | 2.00 | 3.00 | 0.200 | 0.900 | 1.50 (4) | 0 |"
