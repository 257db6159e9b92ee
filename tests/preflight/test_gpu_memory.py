"""What `trinity validate` says of GPUs that are too small for weights and optimizer."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.cli.test_validate import app, runner
from tests.common.config.conftest import MINIMAL
from tests.preflight.test_doctor import SMI
from tests.tiny import tiny_model
from trinity.preflight.doctor import gpus

ASKED = "cluster.gpu_per_node"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of 80 thousand numbers, and a GPU of 1 MiB of which a quarter is used."""
    tiny_model(tmp_path / "model", "llama", seed=1)
    (tmp_path / "run.yaml").write_text(MINIMAL)
    place = tmp_path / "bin" / gpus.PROGRAM
    place.parent.mkdir()
    place.write_text(SMI.format(rows="Small, 1, 0.25, 570.86.10, 9.0, Disabled", cuda="12.8", status=0))
    place.chmod(place.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{place.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*overrides: str) -> str:
    """Return what is said of the file with overrides."""
    words = [word for override in ("model.model_path=model", *overrides) for word in ("--set", override)]
    return " ".join(runner.invoke(app, ["validate", "-c", "run.yaml", *words]).output.split())


def test_gpus_that_are_too_small_are_told_with_a_table_and_the_smallest_change(folder: Path) -> None:
    """B83."""
    text = said(f"{ASKED}=2")
    assert (
        "error[E3701]: the trainer needs 1.21 MiB of each GPU for weights and optimizer, and 768 KiB are free" in text
    )
    assert "parameters 0.3 MiB gradients 0.3 MiB optimizer state 0.6 MiB" in text
    assert "give the trainer 2 GPUs" in text and "fsdp_config.offload_policy=true" in text
    assert "the run needs" in said(f"{ASKED}=1") and "weights of an engine" in said(f"{ASKED}=1")
    assert "E3701" not in said(f"{ASKED}=3"), "two for the trainer hold it"
    offload = "trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.offload_policy=true"
    assert "E3701" not in said(f"{ASKED}=2", offload)
    assert "E3701" not in said(f"{ASKED}=0")


def test_what_the_driver_does_not_tell_is_not_judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin" / gpus.PROGRAM).unlink()
    assert "E3701" not in said(f"{ASKED}=2")
