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


@pytest.mark.nightly
def test_our_side_trains_all_sequences_and_reports_its_times() -> None:
    done = run(*TINY, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["ours_trained_sequences"] == [256.0] * 3
    assert all(count > 0 for count in result["ours_shared_tokens"])
    assert result["ours_steps"] == 2
    assert 0 < result["ours_cpu_s_min"] <= result["ours_cpu_s"] < 60
    assert 0 < result["ours_wall_s_min"] <= result["ours_wall_s"]
    assert result["ours_peak_rss_mib"] > 50
    parts = result["ours_parts_cpu_s"]
    assert parts.keys() == {"generate", "update", "sync", "store", "workflow, reward, pipeline"}
    assert parts["generate"] > 0 and parts["update"] > 0
    assert sum(parts.values()) == pytest.approx(result["ours_cpu_s"], rel=0.5)
    assert not [key for key in result if "trl" in key]


@pytest.mark.nightly
@pytest.mark.parametrize(("work", "rows"), [("long", 4), ("episodes", 12)])
def test_long_prompts_and_episodes_are_measured_beside_rows_apart(work: str, rows: int) -> None:
    sizes = ("--prompts", "1", "--samples", "4") if work == "long" else ("--prompts", "1", "--samples", "2")
    done = run("--work", work, "--apart", *TINY, *sizes, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["ours_trained_sequences"] == result["apart_trained_sequences"] == [float(rows)] * 3
    assert min(result["ours_shared_tokens"]) > 1000 and result["apart_shared_tokens"] == [0.0] * 3
    ours, apart = (result[f"{side}_parts_cpu_s"]["update"] for side in ("ours", "apart"))
    assert result["ratio_apart_update_cpu_s"] == pytest.approx(ours / apart) and min(ours, apart) > 0


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
