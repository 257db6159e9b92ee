"""Trackers on other machines: they never keep a run waiting, continue their run, and get the configuration."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from trinity.common.config import Config
from trinity.common.config.showing import plain_values
from trinity.launch.side import open_monitor
from trinity.monitor import MONITOR, Monitor, MonitorBackend, background, read_metrics

KEY = "a-key-that-nobody-may-see"
SAMPLE = {"prompt": "1+1=", "response": "2", "reward": 1.0}
URI = {"wandb": "base_url", "mlflow": "uri"}


class Hanging(MonitorBackend):
    """Hangs in the call that `place` names until the test ends."""

    place = ""
    released = threading.Event()
    told: list[Any] = []

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        # Of this test: a thread that a test before has left behind must not write into it.
        self._mine = Hanging.place, Hanging.released, Hanging.told
        self._pass("start")

    def _pass(self, place: str) -> None:
        hanging, released, told = self._mine
        if place == hanging:
            released.wait(60)
        told.append(place)

    def log(self, data: dict[str, float], step: int, commit: bool = False) -> None:
        self._pass("log")

    def resume(self, kept: list[dict[str, Any]]) -> None:
        self._pass("resume")

    def close(self) -> None:
        self._pass("close")


@pytest.fixture
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "START_S", 0.3)
    monkeypatch.setattr(background, "CLOSE_S", 0.3)


@pytest.fixture
def long_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what must arrive, however busy the machine is."""
    monkeypatch.setattr(background, "START_S", 120.0)
    monkeypatch.setattr(background, "CLOSE_S", 120.0)


@pytest.fixture
def hanging() -> Iterator[type[Hanging]]:
    MONITOR.register_module("hanging", force=True)(Hanging)
    Hanging.released, Hanging.told = threading.Event(), []
    yield Hanging
    Hanging.released.set()
    MONITOR.contents.pop("hanging")
    MONITOR.classes.pop("hanging")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def make(job: Path, monitor_type: str, **arguments: Any) -> Monitor:
    arguments = {"actor": "trainer"} | arguments
    return Monitor(job, project="p", name="n", monitor_type=monitor_type, **arguments)


@pytest.mark.timeout(50)  # less than what hangs
@pytest.mark.parametrize("place", ["start", "log", "resume", "close"])
@pytest.mark.usefixtures("short_deadlines")
def test_a_monitor_that_hangs_keeps_nobody_waiting(
    tmp_path: Path, hanging: type[Hanging], caught: list[str], place: str
) -> None:
    hanging.place = place
    monitor = make(tmp_path, "hanging")
    monitor.truncate({"lines": 0})
    for step in range(3):
        monitor.log({"x": 1.0}, step)
    monitor.close()
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert place not in hanging.told
    assert [text for text in caught if "monitor hanging does not answer: the run ends without it" in text]


def test_a_slow_start_is_told_while_the_run_goes_on(
    tmp_path: Path, hanging: type[Hanging], caught: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "START_S", 0.3)
    hanging.place = "start"
    monitor = make(tmp_path, "hanging")
    for _ in range(3000):
        if caught:
            break
        time.sleep(0.01)
    assert "monitor hanging has not answered for 0.3 s; the run continues without waiting for it" in caught[0]
    monitor.log({"x": 1.0}, 1)
    hanging.released.set()
    for _ in range(3000):
        if hanging.told == ["start", "log"]:
            break
        time.sleep(0.01)
    monitor.close()
    assert hanging.told == ["start", "log", "close"] and len(caught) == 1


def test_what_was_logged_before_a_late_start_is_sent_in_order(tmp_path: Path, hanging: type[Hanging]) -> None:
    hanging.place = "start"
    monitor = make(tmp_path, "hanging")
    monitor.truncate({"lines": 0})
    monitor.log({"x": 1.0}, 1)
    hanging.released.set()
    monitor.close()
    assert hanging.told == ["start", "resume", "log", "close"]
    assert monitor.num_failures == 0


def test_calls_that_wait_are_bounded_and_counted(
    tmp_path: Path, hanging: type[Hanging], caught: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_WAITING", 2)
    hanging.place = "start"
    monitor = make(tmp_path, "hanging")
    for step in range(5):
        monitor.log({"x": 1.0}, step)
    hanging.released.set()
    monitor.close()
    assert monitor.num_failures == 3 and hanging.told.count("log") == 2
    assert "2 calls wait for monitor hanging, which does not answer; this one is left out" in caught[0]


RUN = """
import sys, time
from trinity.monitor import Monitor, background
background.START_S = background.CLOSE_S = 1.0
begin = time.monotonic()
monitor = Monitor(sys.argv[1], project="p", name="n", actor="trainer", monitor_type=sys.argv[2],
                  monitor_args={sys.argv[3]: sys.argv[4]})
monitor.log({"x": 1.0}, 1)
monitor.close()
print("closed")
"""


@pytest.mark.parametrize("name", sorted(URI))
@pytest.mark.timeout(120)
def test_a_server_that_never_answers_delays_neither_the_run_nor_its_end(
    tmp_path: Path, silent_server: str, name: str
) -> None:
    """The whole process: what a client does when the interpreter ends counts, too. By itself it waits for minutes."""
    pytest.importorskip(name)
    job = tmp_path / "job"
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(job), name, URI[name], silent_server],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    ) as process:  # fmt: skip
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "closed\n"), errors
    assert [line["x"] for line in read_metrics(job / "metrics.jsonl")] == [1.0]


def config(job: Path, monitor_type: str, **monitor_args: Any) -> Config:
    return Config.model_validate(
        {
            "project": "p",
            "name": "n",
            "checkpoint_job_dir": str(job),
            "algorithm": {"algorithm_type": "grpo", "optimizer": {"lr": 0.25}},
            "monitor": {"monitor_type": monitor_type, "monitor_args": monitor_args},
        }
    )


def test_tensorboard_gets_the_configuration_as_hyperparameters(tmp_path: Path) -> None:
    """Also of a run that is continued from nothing, whose event files before are dropped by readers."""
    for _ in range(2):
        monitor = open_monitor(config(tmp_path, "tensorboard", password=KEY), "trainer", None)
        monitor.truncate({"lines": 0})
        monitor.log({"x": 1.0}, 1)
        monitor.close()
        time.sleep(1.0 - time.time() % 1.0)  # event files are read in the order of the second they were begun in
    folder = tmp_path / "monitor" / "tensorboard" / "trainer"
    events = EventAccumulator(str(folder))
    events.Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info")
    data = plugin_data_pb2.HParamsPluginData.FromString(content.plugin_data.content).session_start_info.hparams
    assert data["algorithm.optimizer.lr"].number_value == 0.25
    assert data["algorithm.algorithm_type"].string_value == "grpo"
    assert data["monitor.monitor_args.password"].string_value == "***"
    assert not [path for path in folder.iterdir() if KEY.encode() in path.read_bytes()]


@pytest.mark.usefixtures("long_deadlines")
def test_a_resumed_job_continues_its_run_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file:{tmp_path / 'runs'}"
    job = tmp_path / "job"

    def log(step: int, *, lines: int, **keys: Any) -> None:
        monitor = open_monitor(config(job, "mlflow", uri=uri, password=KEY).model_copy(update=keys), "trainer", None)
        monitor.truncate({"lines": lines})
        monitor.log({"x": float(step), "eval/a/mean@1": 0.5}, step)
        monitor.log_table("rollout_examples", [SAMPLE | {"step": step}], step)
        monitor.close()
        assert monitor.num_failures == 0

    log(1, lines=0)
    log(2, lines=1, seed=7)
    client = tracking.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("p").experiment_id
    (run,) = client.search_runs([experiment])
    assert [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "x")] == [
        (1, 1.0),
        (2, 2.0),
    ]
    assert run.info.status == "FINISHED" and "eval/a/mean_at_1" in run.data.metrics
    assert run.data.params["algorithm.optimizer.lr"] == "0.25"
    assert run.data.params["monitor.monitor_args.password"] == "***"
    assert run.data.params["seed"] == "42" and run.data.tags["resumed_with.seed"] == "7"
    assert run.data.params.keys() >= {"algorithm.algorithm_type", "buffer.batch_size"}
    for step in (1, 2):
        (kept,) = (tmp_path / "runs").rglob(f"rollout_examples/{step}.json")
        table = json.loads(kept.read_text())
        assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == [SAMPLE | {"step": step}]
    client.delete_run(run.info.run_id)
    log(3, lines=2)
    (again,) = client.search_runs([experiment])
    assert again.info.run_id != run.info.run_id, "a run that was deleted is not continued"
    assert [point.value for point in client.get_metric_history(again.info.run_id, "x")] == [1.0, 2.0, 3.0]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.usefixtures("long_deadlines")
def test_wandb_gets_the_configuration_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monitor = open_monitor(config(tmp_path, "wandb"), "trainer", None)
    monitor.log({"x": 1.0}, 1)
    monitor.log_table("rollout_examples", [SAMPLE], 1)
    monitor.close()
    assert monitor.num_failures == 0
    (kept,) = tmp_path.rglob("rollout_examples_*.table.json")
    table = json.loads(kept.read_text())
    assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == [SAMPLE]
    (written,) = tmp_path.rglob("*.wandb")
    for _ in range(600):  # its service is another process
        content = written.read_bytes()
        if b"optimizer" in content:
            break
        time.sleep(0.1)
    assert b"algorithm" in content and b"optimizer" in content and KEY.encode() not in content
    assert plain_values(config(tmp_path, "wandb"))["algorithm"]["optimizer"]["lr"] == 0.25
