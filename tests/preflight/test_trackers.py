"""What `trinity validate` says of monitors that would not get their metrics."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.cli.test_validate import app, runner
from tests.common.config.conftest import MINIMAL
from trinity.preflight import trackers

MLFLOW, SWANLAB = "monitor.monitor_type=mlflow", "monitor.monitor_type=swanlab"
KEY_NAMES = (
    "MLFLOW_TRACKING_URI", "SWANLAB_API_KEY", "SWANLAB_MODE", "SWANLAB_ROOT", "SWANLAB_SAVE_DIR",
    "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "NETRC",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, where nobody is logged in."""
    for name in KEY_NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(MINIMAL)
    return tmp_path


def said(*overrides: str) -> str:
    """Return what is said of the file with overrides."""
    words = [word for override in overrides for word in ("--set", override)]
    return " ".join(runner.invoke(app, ["validate", "-c", "run.yaml", *words]).output.split())


@pytest.mark.difference("`logger` with `wandb`, and no key")
def test_weights_and_biases_without_a_key_is_told_with_ways_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B85."""
    pytest.importorskip("wandb")
    asked = "monitor.monitor_type=[tensorboard,wandb]"
    text = said(asked)
    assert "error[E3850]: `monitor.monitor_type: wandb` needs a key for api.wandb.ai" in text
    assert "WANDB_MODE=offline" in text and "monitor.monitor_type=tensorboard" in text
    assert "for my.host" in said(asked, "monitor.monitor_args.base_url=https://my.host")
    assert "E3850" not in said("monitor.monitor_type=tensorboard")
    for name, value in (("WANDB_API_KEY", "k" * 40), ("WANDB_MODE", "offline")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert "E3850" not in said(asked), name
    monkeypatch.setenv("MY_KEY", "k" * 40)
    assert "E3850" not in said(asked, "monitor.monitor_args.api_key_env=MY_KEY")
    (home / "wandb").mkdir()
    (home / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    assert "E3850" not in said(asked)
    (home / "wandb" / "settings").unlink()
    (home / ".netrc").write_text(f"machine api.wandb.ai\n  login user\n  password {'k' * 40}\n")
    assert "E3850" not in said(asked)


def test_a_wrong_address_of_mlflow_is_told_and_the_run_may_go_on(home: Path) -> None:
    """B86."""
    pytest.importorskip("mlflow")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert "W3851" not in said("monitor.monitor_type=mlflow", f"monitor.monitor_args.uri={address}")
    text = said("monitor.monitor_type=mlflow", f"monitor.monitor_args.uri={address}")
    assert f"warning[W3851]: `monitor.monitor_args.uri` {address} does not answer" in text
    assert "the run continues, and what is missing is sent when it answers" in text
    for wrong in ("htp://host", "http://", "http://host:port"):
        assert "W3851" in said("monitor.monitor_type=mlflow", f"monitor.monitor_args.uri={wrong}"), wrong
    for right in ("mlruns", "sqlite:///mlflow.db", "file:///tmp/mlruns"):
        assert "W3851" not in said("monitor.monitor_type=mlflow", f"monitor.monitor_args.uri={right}"), right


def test_a_run_of_mlflow_without_a_server_is_told_where_it_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(trackers, "DEFAULT_URI", address)
    monkeypatch.setattr(trackers, "is_installed", lambda name: True)
    text = said(MLFLOW)
    assert f"warning[W3852]: no MLflow answers at {address}, so that the run is kept in sqlite:////" in text
    assert "monitor/mlflow.db" in text and "write an address as monitor.monitor_args.uri" in text
    monkeypatch.setattr(trackers, "is_installed", lambda name: name != "alembic")
    text = said(MLFLOW)
    assert "error[E3301]: `monitor.monitor_type: mlflow` without a server needs the package alembic" in text
    assert "pip install 'trinity-rft[mlflow]'" in text
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    text = said(MLFLOW)
    assert "W3852" not in text and "E3301" not in text and f"{address} does not answer" in text


def test_swanlab_needs_its_package_and_a_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", None)
    text = said(SWANLAB)
    assert "error[E3301]: `monitor.monitor_type` needs the package swanlab" in text
    assert "pip install 'trinity-rft[swanlab]'" in text
    monkeypatch.setattr(trackers, "is_installed", lambda name: True)
    text = said(SWANLAB)
    assert "error[E3850]: `monitor.monitor_type: swanlab` needs a key for swanlab.cn" in text
    assert "monitor.monitor_args.mode: offline" in text
    for mode in ("offline", "local", "disabled"):
        assert "E3850" not in said(SWANLAB, f"monitor.monitor_args.mode={mode}"), mode
    assert "monitor.monitor_args.mode" in said(SWANLAB, "monitor.monitor_args.mode=ofline")
    (home / ".swanlab").mkdir()
    (home / ".swanlab" / ".netrc").write_text("machine swanlab.cn\n")
    assert "E3850" not in said(SWANLAB)


def test_a_port_that_prometheus_cannot_have_is_told(home: Path) -> None:
    asked = "monitor.monitor_type=prometheus"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = said(asked, f"monitor.monitor_args.port={port}")
    assert f"warning[W3853]: port {port} of 127.0.0.1 cannot be opened for Prometheus" in text
    assert "W3853" not in said(asked, f"monitor.monitor_args.port={port}")
    assert "monitor.monitor_args.port" in said(asked, "monitor.monitor_args.port=70000")
    assert "error[E1703]: `prometheus` has no argument `prot`" in said(asked, "monitor.monitor_args.prot=1")
