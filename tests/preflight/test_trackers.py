"""What `trinity validate` says of monitors that would not get their metrics."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cli.test_validate import app, runner
from tests.common.config.conftest import MINIMAL

KEY_NAMES = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "NETRC")


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
