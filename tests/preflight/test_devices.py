"""What `trinity validate` says of GPUs that are asked for and not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.test_validate import app, runner
from tests.common.config.conftest import MINIMAL


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    return tmp_path / "run.yaml"


def test_a_gpu_that_is_not_there_names_the_way_out(
    run_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), "--set", "cluster.gpu_per_node=1"])
    assert "E3202" in result.output
    assert "use --set cluster.gpu_per_node=0" in result.output


@pytest.mark.parametrize(
    ("visible", "asked", "words"),
    [
        (None, 8, "is 8 and this machine has 4 GPUs (NVIDIA device files) | use --set cluster.gpu_per_node=4"),
        ("0,9", 2, "(CUDA_VISIBLE_DEVICES='0,9' shows 1 of them) | use --set cluster.gpu_per_node=1"),
        ("", 1, "this machine has 4 GPUs (CUDA_VISIBLE_DEVICES='' shows 0 of them) | gpu_per_node=0"),
        (None, 4, ""),
        ("3,1", 2, ""),
    ],
)
def test_more_gpus_than_this_machine_shows_are_told(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, asked: int, words: str
) -> None:
    for module in ("trinity.utils.gpu", "trinity.preflight.devices"):
        monkeypatch.setattr(f"{module}.device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), "--set", f"cluster.gpu_per_node={asked}"])
    shown = " ".join(result.output.split())
    assert ("E3202" in shown) == bool(words)
    assert all(part in shown for part in words.split(" | ")), shown
    elsewhere = ["--set", "cluster.ray_address=10.0.0.1:6379", "--set", f"cluster.gpu_per_node={asked}"]
    assert "E3202" not in runner.invoke(app, ["validate", "-c", str(run_yaml), *elsewhere]).output


def test_a_model_on_two_devices_asks_for_vllm_by_name_where_it_is_missing(
    run_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    asked = ["--set", "explorer.rollout_model.tensor_parallel_size=2", "--set", "cluster.gpu_per_node=4"]
    shown = " ".join(runner.invoke(app, ["validate", "-c", str(run_yaml), *asked]).output.split())
    assert "E3301" in shown and "E3223" not in shown and 'pip install "trinity-rft[vllm]"' in shown
    model = "explorer.rollout_model"
    assert f"use --set {model}.engine_type=torch --set {model}.tensor_parallel_size=1" in shown
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), *asked, "--schema-only"])
    assert result.exit_code == 0, result.output
