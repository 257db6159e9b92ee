"""The figure of dynamic sampling: one short run, and what is read off a curve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from trinity.quickstart.folder import prepare


@pytest.fixture(scope="module")
def dynamic(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("dynamic_sampling")


@pytest.mark.slow
def test_a_run_gives_accuracies_by_the_rollouts_that_were_trained(dynamic: ModuleType, tmp_path: Path) -> None:
    prepare(tmp_path / "seed_3", seed=3)
    held_out = tmp_path / "seed_3" / "data" / "test.jsonl"
    held_out.write_text("".join(held_out.read_text().splitlines(keepends=True)[:16]))
    model = dynamic.warm_up(tmp_path, seed=3, steps=2)
    done = dynamic.cell(tmp_path, model, seed=3, setting="plain", steps=2)
    assert done["trained"] == done["issued"] == 512
    assert [x for x, _ in done["sampled"]] == [0, 256, 512] == [x for x, _ in done["greedy"]]
    assert not (tmp_path / "seed_3" / "cells" / "plain").exists()


def test_area_and_level_are_those_of_the_straight_lines_between_evaluations(dynamic: ModuleType) -> None:
    curve = [(0.0, 0.2), (100.0, 0.6), (300.0, 1.0)]
    assert dynamic.area(curve) == pytest.approx((100 * 0.4 + 200 * 0.8) / 300)
    assert dynamic.rollouts_to(curve, 0.8) == pytest.approx(200.0)
    assert dynamic.rollouts_to(curve, 1.5) is None


def test_the_table_has_means_and_single_values(dynamic: ModuleType) -> None:
    def result(seed: int, setting: str, last: float) -> dict[str, object]:
        curve = [[0.0, 0.5], [100.0, last]]
        return {"seed": seed, "setting": setting, "trained": 100.0, "issued": 150.0, "greedy": curve, "sampled": curve}

    lines = dynamic.table([result(1, "plain", 1.0), result(2, "plain", 0.7), result(1, "dynamic", 1.0)]).splitlines()
    assert len(lines) == 6
    assert lines[2] == (
        "| greedy | plain | 0.675 (0.750, 0.600) | - (80, never) | 0.850 (1.000, 0.700) | 1.50 (1.50, 1.50) |"
    )
    assert lines[3] == "| greedy | dynamic | 0.750 | 80 | 1.000 | 1.50 |"
