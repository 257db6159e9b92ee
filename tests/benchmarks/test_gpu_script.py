"""The device benchmark takes the same path on a CPU with tiny shapes; its arithmetic is checked by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
Scripts = Callable[[str], ModuleType]


def python(*arguments: str) -> str:
    """Run the interpreter on one thread; return its standard output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_tiny_shapes_on_a_cpu_give_every_figure(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    result = json.loads(python(str(SCRIPT), "--device", "cpu", "--tiny", "--json", "--out", str(file)))
    assert json.loads(file.read_text()) == result and result["problems"] == []
    assert result["limits"]["bandwidth_bytes_s"] > 0 and result["limits"]["product_flops"] > 0
    assert result["limits"]["published_flops"] is None
    tiny = result["shapes"]["tiny"]
    assert [row["rows"] for row in tiny["decode"]] == [1, 4]
    assert [row["tokens"] for row in tiny["train"]] == [64, 128]
    assert all(row["tokens_per_s"] > 0 and row["share_of_limit"] > 0 for row in tiny["decode"])
    assert all(row["seconds"] > 0 and row["mfu_of_measured"] > 0 for row in tiny["train"])
    assert tiny["sync"]["lent_s"] > 0 and tiny["sync"]["copied_s"] > 0
    collective = tiny["sync"]["collective"]
    assert collective["backend"] == "gloo" and collective["bytes"] == tiny["sync"]["trainer_bytes"]
    assert collective["published_s"] > 0 and collective["received_s"] > 0
    goals = {goal["name"]: goal for goal in result["goals"]}
    assert goals["tiny decode of 4 rows, of the bandwidth limit"]["goal"] == 0.7
    assert goals["tiny MFU at 128 tokens"]["is_met"] == (tiny["train"][1]["mfu_of_measured"] >= 0.4)
    assert goals["tiny sync in memory"] | {"value": 0, "is_met": 0} == {
        "name": "tiny sync in memory", "value": 0, "goal": 0.2, "unit": "s", "sign": "<=", "is_met": 0,
    }  # fmt: skip
    # 2 layers of (query, out: 64 x 64 each; key, value: 64 x 32 each; three of 64 x 128), head norms and layer norms
    # (16 + 16 + 64 + 64), the embedding of 1024 x 64 and the last norm; in float32.
    layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 160)
    assert tiny["sync"]["trainer_bytes"] == 4 * (layers + 1024 * 64 + 64)
    assert tiny["parameters"] == layers - 2 * 160 + 1024 * 64


def test_arithmetic_of_the_limits(script: Scripts) -> None:
    shape = script("gpu_limits").Shape(
        hidden=4, layers=2, heads=2, kv_heads=1, head_size=2, feed_forward=3, vocabulary=10
    )
    decoded = {"tokens": 8.0, "seconds": 2.0}
    figures = script("gpu_parts").decode_figures(
        shape, decoded, rows=2, new_tokens=16, limit_bytes_s=4000.0, dtype=torch.float16
    )
    # A layer: query and out 4 x 4 each, key and value 4 x 2 each, gate, up and down 4 x 3 each: 84; the head 10 x 4.
    assert shape.parameters == 2 * 84 + 40
    # 6 a parameter and token, and 6 x layers x (2 heads x 2) x tokens squared.
    assert shape.training_flops(5) == 6 * 208 * 5 + 6 * 2 * 4 * 25
    # Keys and values of 2 layers, one head of 2, two bytes each.
    assert shape.cache_bytes(2) == 16
    assert figures["tokens_per_s"] == 4.0
    # A step reads 208 x 2 bytes of weights and 2 rows x (64 + 8) tokens x 16 bytes, and gives 2 tokens.
    assert figures["limit_tokens_per_s"] == pytest.approx(2 * 4000 / (416 + 2304))


def test_a_figure_that_fails_is_told_and_hides_no_other(script: Scripts, tmp_path: Path) -> None:
    def fails() -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    figures = script("gpu").Figures(tmp_path / "figures.json")
    kept: list[int] = []
    figures.take("large", fails, keep=kept.append)
    figures.take("small", lambda: 7, keep=kept.append)
    figures.goal("share", 0.7, 0.7, unit="", at_least=True)
    figures.goal("seconds", 0.3, 0.2, unit="s", at_least=False)
    figures.write()
    assert kept == [7]
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["problems"] == ["large: OutOfMemoryError: CUDA out of memory"]
    assert [goal["is_met"] for goal in found["goals"]] == [True, False]
