"""`/metrics` of a run, as Prometheus reads it."""

from __future__ import annotations

import math
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from trinity.monitor import Monitor, shipping


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "POLL_S", 0.02)
    monkeypatch.setattr(shipping, "PAUSES_S", (0.02, 0.05))


def make(job: Path, actor: str = "trainer", port: int = 0, **args: Any) -> Monitor:
    return Monitor(
        job, project="p", name="n", actor=actor, monitor_type="prometheus", monitor_args={"port": port, **args}
    )


def scraped(job: Path) -> dict[tuple[str, str], float]:
    """Return the values by metric and actor."""
    address = (job / "monitor" / "prometheus.url").read_text()
    text = httpx.get(address).raise_for_status().text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert (sample.labels["project"], sample.labels["name"]) == ("p", "n")
            found[sample.name, sample.labels["actor"]] = sample.value
    return found


def wait_for(job: Path, key: tuple[str, str], value: float) -> dict[tuple[str, str], float]:
    for _ in range(3000):
        if (job / "monitor" / "prometheus.url").exists():
            found = scraped(job)
            if found.get(key) == value:
                return found
        time.sleep(0.01)
    raise AssertionError(f"no {value} of {key}")


def test_the_last_values_of_both_actors_are_there_and_go_with_the_run(tmp_path: Path, caught: list[str]) -> None:
    explorer, trainer = make(tmp_path, "explorer"), make(tmp_path)
    explorer.log({"eval/a/accuracy/mean@4": 0.5, "rollout/reward/mean": 0.25, "a b": 1.0, "a_b": 2.0}, 1)
    trainer.log({"actor/loss": 1.0}, 1)
    trainer.log({"actor/loss": math.nan}, 2)
    found = wait_for(tmp_path, ("trinity_step", "trainer"), 2.0)
    assert found["trinity_eval_a_accuracy_mean_at_4", "explorer"] == 0.5
    assert found["trinity_rollout_reward_mean", "explorer"] == 0.25
    assert found["trinity_a_b", "explorer"] == 2.0, "one series of a name, or Prometheus refuses them all"
    assert math.isnan(found["trinity_actor_loss", "trainer"])
    assert abs(found["trinity_time_seconds", "trainer"] - time.time()) < 3600
    address = (tmp_path / "monitor" / "prometheus.url").read_text()
    explorer.close()
    trainer.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
    assert not (tmp_path / "monitor" / "prometheus.url").exists()
    assert caught == []


def test_a_resumed_run_shows_what_it_had_and_what_comes(tmp_path: Path) -> None:
    first = make(tmp_path)
    first.log({"x": 1.0, "y": 1.0}, 1)
    first.close()
    second = make(tmp_path)
    second.log({"x": 2.0}, 2)
    found = wait_for(tmp_path, ("trinity_x", "trainer"), 2.0)
    assert found["trinity_y", "trainer"] == 1.0
    second.close()


def test_a_port_that_is_taken_is_told_and_had_when_it_is_free(tmp_path: Path, caught: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monitor = make(tmp_path, port=port)
        monitor.log({"x": 1.0}, 1)
        for _ in range(3000):
            if caught:
                break
            time.sleep(0.01)
    assert f"port {port} of 127.0.0.1" in caught[0] and "write another monitor.monitor_args.port" in caught[0]
    wait_for(tmp_path, ("trinity_x", "trainer"), 1.0)
    monitor.close()
