"""The table of staleness: one short cell, and its form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from trinity.quickstart.folder import prepare


@pytest.fixture(scope="module")
def staleness(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("staleness")


@pytest.mark.slow
def test_a_cell_trains_on_rollouts_of_the_wanted_age(staleness: ModuleType, tmp_path: Path) -> None:
    prepare(tmp_path / "seed_3", seed=3)
    held_out = tmp_path / "seed_3" / "data" / "test.jsonl"
    held_out.write_text("".join(held_out.read_text().splitlines(keepends=True)[:16]))
    model = staleness.warm_up(tmp_path, seed=3, steps=2)
    done = staleness.cell(tmp_path, model, seed=3, loss="corrected", staleness=1, steps=2, rate=1e-3)
    assert done["steps"] == 2 and done["cpu_seconds"] > 0
    assert 0 <= done["greedy_after"] <= 1 and 0 <= done["sampled_after"] <= 1
    assert not (tmp_path / "seed_3" / "cells" / "corrected_1").exists()
    again = staleness.warm_up(tmp_path, seed=3, steps=2)
    assert again == model, "an imitation that is done is not run again"


def test_the_table_has_means_and_single_values(staleness: ModuleType) -> None:
    def result(seed: int, accuracy: float) -> dict[str, float | str]:
        keys = ("greedy_before", "greedy_after", "sampled_before", "sampled_after")
        return {"seed": seed, "loss": "plain", "staleness": 8, "cpu_seconds": 10.0 * seed} | dict.fromkeys(
            keys, accuracy
        )

    lines = staleness.table([result(1, 0.5), result(2, 0.25)]).splitlines()
    assert len(lines) == 3
    assert lines[2] == f"| plain | 8 | {' | '.join(['0.375 (0.500, 0.250)'] * 4)} | 15 |"
