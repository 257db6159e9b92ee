"""The benchmark of prompts with tiny sizes, and its arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "prompts.py"
TINY = ("--hidden", "448", "--layers", "1", "--samples", "3", "--new", "4", "--rounds", "1")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script to its end."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.nightly
def test_both_paths_sample_the_same_and_the_fast_one_holds_the_prompt_once() -> None:
    done = run(*TINY, "--lengths", "600", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)
    assert row["length"] == 600 and row["first_logprob_difference"] <= 1e-5
    for path in ("fast", "fallback"):
        assert row[path]["prefill_s"] > 0 and row[path]["token_ms"] > 0 and row[path]["peak_mib"] > 0
    # Keys and values of one head of 64 in float32: 512 bytes a position.
    assert row["fast"]["cache_mib"] * 2**20 <= 512 * (640 + 3 * 64)
    assert row["fallback"]["cache_mib"] * 2**20 >= 512 * 3 * 604


def test_the_table_shows_both_figures_and_the_worst_ratio(script: Callable[[str], ModuleType]) -> None:
    fast = {"prefill_s": 1.0, "token_ms": 2.0, "cache_mib": 3.0, "peak_mib": 4.0}
    fallback = {"prefill_s": 2.0, "token_ms": 20.0, "cache_mib": 30.0, "peak_mib": 5.0}
    ratio: dict[str, Any] = {name: fast[name] / fallback[name] for name in fast}
    rows = [{"length": 64, "fast": fast, "fallback": fallback, "ratio": ratio}]
    lines = script("prompts").table(rows).splitlines()
    assert lines[2] == "| 64 | 1 / 2 = **0.50** | 2 / 20 = **0.10** | 3 / 30 = **0.10** | 4 / 5 = **0.80** | 0.80 |"


@pytest.mark.parametrize("arguments", [("--new", "1"), ("--lengths", "0"), ("--samples", "0")])
def test_sizes_that_would_measure_nothing_are_refused(refused: Callable[..., str], arguments: tuple[str, str]) -> None:
    assert "must be at least" in refused("prompts", *arguments)
