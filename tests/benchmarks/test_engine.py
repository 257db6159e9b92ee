"""The benchmark of the engine with tiny sizes, and its table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.parametrize("mode", [(), ("--deterministic",)])
def test_conversations_find_their_turns_and_sample_the_same(mode: tuple[str, ...]) -> None:
    sizes = ("--hidden", "448", "--layers", "1", "--conversations", "2")
    words = (*sizes, "--rounds", "1", "--work", "turns", "--json", *mode)
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "engine.py"), *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(done.stdout)["turns"]
    assert all(row[cache]["cpu_s"] > 0 and row[cache]["wall_s"] > 0 for cache in ("with", "without"))
    # Of a turn's prompt the question is new, and with fixed shapes the answer; a block is at most cut.
    prompts = [200 + 124 * turn for turn in range(6)]
    new = [200] + [60 + 1 + (64 if mode else 0)] * 5
    least, most = 1 - (sum(new) + 5 * 31) / sum(prompts), 1 - sum(new) / sum(prompts)
    assert least <= row["hit_frac"] <= most
    assert row["logprob_difference"] <= (0 if mode else 1e-5)


def test_the_table_shows_both_figures_and_their_ratio(script: Callable[[str], ModuleType]) -> None:
    sides = {
        "with": {"cpu_s": 1.0, "wall_s": 2.0, "peak_mib": 3.0, "process_mib": 8.0},
        "without": {"cpu_s": 4.0, "wall_s": 4.0, "peak_mib": 6.0, "process_mib": 10.0},
    }
    rows = {"turns": {**sides, "hit_frac": 0.8, "cache_mib": 27.0, "logprob_difference": 2.4e-6}}
    cells = script("engine").table(rows).splitlines()[2].split(" | ")
    assert cells[1:5] == ["1 / 4 = **0.25**", "2 / 4 = **0.50**", "3 / 6 = **0.50**", "8 / 10 = **0.80**"]
    assert cells[5:] == ["80%", "27", "2.4e-06 |"]


def test_no_rounds_are_refused(refused: Callable[..., str]) -> None:
    assert "must be at least 1" in refused("engine", "--rounds", "0")
