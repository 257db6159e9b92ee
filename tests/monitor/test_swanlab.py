"""SwanLab without a network: its own client writes the experiment to the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.monitor.conftest import be_patient
from trinity.monitor import Monitor

pytest.importorskip("swanlab")
KEY = "canary-of-swanlab"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    monkeypatch.delenv("SWANLAB_MODE", raising=False)


def make(job: Path, actor: str, **args: Any) -> Monitor:
    return Monitor(
        job, project="addition", name="run/rft", actor=actor, monitor_type="swanlab",
        monitor_args={"mode": "offline", "api_key": KEY, **args}, hyperparameters={"algorithm": {"lr": 0.25}},
    )  # fmt: skip


def test_one_experiment_has_the_metrics_of_both_actors(tmp_path: Path, caught: list[str]) -> None:
    explorer, trainer = make(tmp_path, "explorer"), make(tmp_path, "trainer")
    explorer.log({"rollout/reward/mean": 0.5, "time/sync_weight": 1.0}, 1)
    trainer.log({"actor/loss": 0.25, "time/sync_weight": 2.0}, 1)
    trainer.log_table("rollout_examples", [{"prompt": "1+1=", "response": "2"}], 1)
    explorer.close()
    trainer.close()
    assert explorer.num_failures == trainer.num_failures == 0 and caught == []
    (record,) = (tmp_path / "monitor" / "swanlab").rglob("*.swanlab")
    content = record.read_bytes()
    for name in ("rollout/reward/mean", "actor/loss", "explorer/time/sync_weight", "trainer/time/sync_weight"):
        assert name.encode() in content, name
    (table,) = (tmp_path / "monitor" / "swanlab").rglob("media/text/*")
    assert "|1+1=|2|" in table.read_text()
    (written,) = (tmp_path / "monitor" / "swanlab").rglob("config.yaml")
    assert "0.25" in written.read_text()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_resumed_run_is_the_same_experiment(tmp_path: Path) -> None:
    for first in (0, 1):
        monitor = make(tmp_path, "trainer", logdir=str(tmp_path / "logs"))
        monitor.truncate({"lines": first})
        monitor.log({"x": 1.0}, first)
        monitor.close()
        assert monitor.num_failures == 0
    records = list((tmp_path / "logs").rglob("*.swanlab"))
    assert records and len({record.name for record in records}) == 1
