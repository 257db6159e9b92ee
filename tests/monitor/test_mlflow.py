"""A real server of MLflow, behind a gate that can be shut; and no server at all."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docs.pages import page
from tests.docs.terminal import answer, served
from tests.http_service import listening
from tests.monitor.conftest import be_patient
from tests.monitor.mlflow_server import MlflowServer, free_port
from trinity.monitor import Monitor, mlflow

tracking = pytest.importorskip("mlflow.tracking")
pytestmark = pytest.mark.timeout(600)
SAMPLE = {"prompt": "1+1=", "response": "2", "reward": 1.0}


class Gate:
    """Hands requests to a server, or answers that it is away.

    Attributes:
        status: with which it answers in place of the server; 0: the server answers; -1: no answer.
        num_refused: requests that it answered so.
        credentials: that requests came with.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self.uri = ""
        self.status = 0
        self.num_refused = 0
        self.credentials: set[str] = set()

    def handler(gate) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                gate.credentials.add(self.headers.get("Authorization", ""))
                if gate.status < 0:
                    return
                if gate.status:
                    gate.num_refused += 1
                    self.answer(gate.status, b"{}")
                    return
                kept = {name: self.headers[name] for name in ("Content-Type", "Accept") if name in self.headers}
                url = f"{gate.server}{self.path}"
                answer = httpx.request(self.command, url, content=body, headers=kept, timeout=120.0)
                self.answer(answer.status_code, answer.content)

            do_GET = do_PATCH = do_PUT = do_POST

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        gate = Gate(server.uri)
        with listening(gate.handler()) as gate.uri:
            yield gate
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def make(job: Path, actor: str = "trainer", **args: Any) -> Monitor:
    return Monitor(
        job, project="addition", name="run/rft", actor=actor, monitor_type="mlflow", monitor_args=args,
        hyperparameters={"algorithm": {"lr": 0.25}},
    )  # fmt: skip


def only_run(uri: str) -> tuple[Any, Any]:
    client = tracking.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("addition").experiment_id])
    return client, run


def points(uri: str, name: str) -> list[tuple[int, float]]:
    client, run = only_run(uri)
    found = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
    return sorted(found, key=lambda point: point[0])


def wait_for(what: Any) -> None:
    for _ in range(12000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("waited for two minutes")


def test_a_server_that_is_away_gets_one_run_with_everything(
    tmp_path: Path, gate: Gate, caught: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away at the start, overloaded in between; then a resume continues the run."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "env")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "env")
    args = {"uri": gate.uri, "username": "me", "password": "canary-of-mlflow"}
    gate.status = -1
    explorer, trainer = make(tmp_path, "explorer", **args), make(tmp_path, **args)
    explorer.log({"rollout/x": 0, "time/sync_weight": 1, "eval/a/mean@1": 0.5}, 0)
    trainer.log({"actor/x": 0, "time/sync_weight": 2}, 0)
    wait_for(lambda: caught)
    gate.status = 0
    wait_for(lambda: (tmp_path / "monitor" / "mlflow_run.json").exists())
    gate.status = 429
    explorer.log({"rollout/x": 1}, 1)
    trainer.log({"actor/x": 1}, 1)
    trainer.log_table("rollout_examples", [SAMPLE], 1)
    wait_for(lambda: gate.num_refused)
    gate.status = 0
    explorer.close()
    trainer.close()
    assert explorer.num_failures == trainer.num_failures == 0
    again = make(tmp_path, **args)
    again.truncate({"lines": 1, "samples": 0})  # the checkpoint is older than the last lines
    again.log({"actor/x": 1}, 1)
    again.log_table("rollout_examples", [SAMPLE], 1)
    again.log({"actor/x": 2}, 2)
    again.close()
    client, run = only_run(gate.uri)
    assert points(gate.uri, "rollout/x") == [(0, 0.0), (1, 1.0)]
    assert points(gate.uri, "actor/x") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert (run.data.metrics["explorer/time/sync_weight"], run.data.metrics["trainer/time/sync_weight"]) == (1, 2)
    assert run.data.metrics["eval/a/mean_at_1"] == 0.5
    assert (run.info.run_name, run.info.status) == ("run/rft", "FINISHED")
    assert (run.data.tags["group"], run.data.tags["stage"]) == ("run", "rft")
    assert run.data.params == {"algorithm.lr": "0.25"}
    assert [file.path for file in client.list_artifacts(run.info.run_id, "rollout_examples")] == [
        "rollout_examples/1.json"
    ]
    file = client.download_artifacts(run.info.run_id, "rollout_examples/1.json", str(tmp_path))
    assert len(json.loads(Path(file).read_text())["data"]) == 1, "MLflow adds the rows of a table that is sent again"
    credentials = "Basic " + base64.b64encode(b"me:canary-of-mlflow").decode()
    assert credentials in gate.credentials and not any("ZW52" in each for each in gate.credentials - {credentials})
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"canary-of-mlflow" in path.read_bytes()]


def test_the_default_place_is_a_local_server_or_else_a_store_that_is_told(
    tmp_path: Path, gate: Gate, caught: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.status = 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mlflow, "DEFAULT_URI", gate.uri)
    there = make(tmp_path / "there")
    wait_for(lambda: (tmp_path / "there" / "monitor" / "mlflow_run.json").exists())
    there.close()
    assert json.loads((tmp_path / "there" / "monitor" / "mlflow_run.json").read_text())["uri"] == gate.uri
    assert caught == []
    gate.status = 503
    job = tmp_path / "job"
    for step in (0, 1):
        monitor = make(job)
        monitor.log({"x": step}, step)
        monitor.log_table("t", [SAMPLE], step)
        monitor.close()
        assert monitor.num_failures == 0
        gate.status = 0  # a run that lies in a store stays there
    uri = f"sqlite:///{job / 'monitor' / 'mlflow.db'}"
    assert len(caught) == 1 and f"no server answers at {gate.uri}, so that the run is kept in {uri}" in caught[0]
    assert f"mlflow server --backend-store-uri {uri}" in caught[0]
    assert points(uri, "x") == [(0, 0.0), (1, 1.0)]
    assert len(list((job / "monitor" / "mlflow").rglob("t/*.json"))) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "there"], "nothing in the working directory"


@pytest.mark.runs("docs/monitoring.md", "mlflow server")
def test_the_documented_server_shows_what_is_kept_in_the_job(tmp_path: Path) -> None:
    """At a port that is free, and with one process for requests, by MLflow's own variables."""
    (line,) = page("docs/monitoring.md").lines("mlflow server")
    store = tmp_path / line.rpartition("sqlite:///")[2]
    monitor = make(store.parents[1], uri=f"sqlite:///{store}")
    monitor.log({"x": 0.5}, 1)
    monitor.close()
    variables = {"MLFLOW_PORT": str(free_port()), "MLFLOW_WORKERS": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with served(line, tmp_path, r"Uvicorn running on (http://127\.0\.0\.1:\d+)", **variables) as address:
        assert answer(f"{address}/health").text == "OK"
        assert points(address, "x") == [(1, 0.5)]
