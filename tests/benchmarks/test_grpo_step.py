"""The step benchmark with tiny sizes: our side alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "grpo_step.py"
TINY = ("--hidden", "64", "--new", "4", "--steps", "3", "--rounds", "1")


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


@pytest.mark.slow
def test_our_side_trains_all_sequences_and_reports_its_times() -> None:
    done = run(*TINY, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["ours_trained_sequences"] == [256.0] * 3
    assert result["ours_steps"] == 2
    assert 0 < result["ours_cpu_s_min"] <= result["ours_cpu_s"] < 60
    assert 0 < result["ours_wall_s_min"] <= result["ours_wall_s"]
    assert result["ours_peak_rss_mib"] > 50
    parts = result["ours_parts_cpu_s"]
    assert parts.keys() == {"generate", "update", "sync", "store", "workflow, reward, pipeline"}
    assert parts["generate"] > 0 and parts["update"] > 0
    assert sum(parts.values()) == pytest.approx(result["ours_cpu_s"], rel=0.5)
    assert not [key for key in result if "trl" in key]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "1"), "--steps must be at least 2"),
        (("--rounds", "0"), "--rounds at least 1"),
        (("--trl-python", "python", "--new", "4"), "are for our side alone"),
    ],
)
def test_arguments_that_would_compare_nothing_are_refused(
    refused: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused("grpo_step", *arguments)
