"""W&B's own client against a server that answers it: one run, whatever happens to the server."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.followed import programs, run_lines
from tests.docs.pages import page
from tests.monitor.conftest import be_patient
from tests.monitor.wandb_server import ENTITY, WandbRun, WandbServer, wandb_server
from trinity.monitor import Monitor

pytest.importorskip("wandb")
KEY = "0123456789abcdef" * 2 + "canary00"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)
    for name in ("WANDB_MODE", "WANDB_BASE_URL", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for what in ("FILE_STREAM", "GRAPHQL"):  # its own attempts come soon, too
        monkeypatch.setenv(f"WANDB__{what}_RETRY_WAIT_MAX_SECONDS", "0.2")
        monkeypatch.setenv(f"WANDB__{what}_RETRY_WAIT_MIN_SECONDS", "0.1")


@pytest.fixture(scope="module")
def server() -> Iterator[WandbServer]:
    import wandb

    wandb.teardown()  # it has read the environment of the tests before, which were offline
    with wandb_server() as running:
        yield running


@pytest.fixture
def again() -> Iterator[None]:
    """W&B reads the environment once in a process."""
    import wandb

    wandb.teardown()
    yield
    wandb.teardown()


def make(job: Path, address: str, actor: str = "trainer", name: str = "run/rft", **args: Any) -> Monitor:
    return Monitor(
        job, project="addition", name=name, actor=actor, monitor_type="wandb",
        monitor_args={"base_url": address, "api_key": KEY, **args},
        hyperparameters={"algorithm": {"lr": 0.25}},
    )  # fmt: skip


def wait_for(what: Any) -> None:
    for _ in range(12000):
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("waited for two minutes")


def only_run(server: WandbServer, name: str) -> WandbRun:
    (run,) = [run for run in server.runs.values() if run.fields["displayName"] == name]
    return run


def column(run: WandbRun, name: str) -> list[Any]:
    return [row[name] for row in run.history if name in row]


APART = """
import sys
from pathlib import Path
from tests.monitor.test_wandb import log, make
from trinity.monitor import background
background.START_S = background.CLOSE_S = 60.0
job, address, actor = sys.argv[1:]
log(make(Path(job), address, actor), actor, 0, 4)
"""


def log(monitor: Monitor, actor: str, first: int, last: int) -> None:
    """Log some steps, and close the monitor."""
    monitor.truncate({"lines": first})
    for step in range(first, last):
        monitor.log({f"{actor}/x": step, "time/sync_weight": step}, step)
    monitor.log_table(f"{actor}_examples", [{"prompt": "1+1=", "response": "2"}], last)
    monitor.close()
    assert monitor.num_failures == 0


def test_explorer_and_trainer_apart_have_one_run_which_a_resume_continues(tmp_path: Path, server: WandbServer) -> None:
    """In two processes at once; then one of them again, from an earlier step: what is there is not sent again."""
    other = subprocess.Popen(
        [sys.executable, "-c", APART, str(tmp_path), server.address, "explorer"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    log(make(tmp_path, server.address), "trainer", 0, 4)
    output, _ = other.communicate(timeout=200)
    assert other.returncode == 0, output
    log(make(tmp_path, server.address), "trainer", 2, 5)
    run = only_run(server, "run/rft")
    assert (run.project, run.fields["groupName"], run.fields["jobType"]) == ("addition", "run", "rft")
    assert run.config == {"algorithm": {"lr": 0.25}} and run.exit_code == 0
    for actor, expected in {"explorer": [0, 1, 2, 3], "trainer": [0, 1, 2, 3, 4]}.items():
        steps = [(row["global_step"], row[f"{actor}/x"]) for row in run.history if f"{actor}/x" in row]
        assert steps == [(step, step) for step in expected]
        assert column(run, f"{actor}/time/sync_weight") == expected
    tables = column(run, "explorer_examples"), column(run, "trainer_examples")
    assert [len(each) for each in tables] == [1, 2]
    for table in itertools.chain(*tables):
        sent = json.loads(next(body for path, body in server.files.items() if path.endswith(table["path"])))
        assert (sent["columns"], sent["data"]) == (["prompt", "response"], [["1+1=", "2"]])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_server_that_was_down_gets_everything(tmp_path: Path, server: WandbServer, caught: list[str]) -> None:
    """Down at the start, and again in between: W&B's client keeps what it could not send."""
    server.status = 503
    monitor = make(tmp_path, server.address, name="down")
    monitor.log({"x": 0}, 0)
    time.sleep(0.5)
    assert not server.runs or "down" not in [run.fields["displayName"] for run in server.runs.values()]
    monitor.log({"x": 1}, 1)
    server.status = 0
    wait_for(lambda: [run for run in server.runs.values() if run.fields.get("displayName") == "down"])
    server.status = 503
    monitor.log({"x": 2}, 2)
    time.sleep(0.5)
    server.status = 0
    monitor.close()
    assert column(only_run(server, "down"), "x") == [0, 1, 2] and monitor.num_failures == 0


def test_what_the_server_did_not_get_before_a_kill_is_sent_by_the_resume(tmp_path: Path, server: WandbServer) -> None:
    first = make(tmp_path, server.address, name="lost")
    for step in range(4):
        first.log({"x": step}, step)
    first.close()
    run = only_run(server, "lost")
    # As if the client had been killed before it sent the last two lines.
    del run.history[2:]
    run.summary = dict(run.history[-1])
    second = make(tmp_path, server.address, name="lost")
    second.truncate({"lines": 4})
    second.log({"x": 4}, 4)
    second.close()
    assert column(only_run(server, "lost"), "x") == [0, 1, 2, 3, 4]


def test_a_run_that_was_deleted_at_the_server_begins_anew(tmp_path: Path, server: WandbServer) -> None:
    first = make(tmp_path, server.address, name="gone")
    first.log({"x": 0}, 0)
    first.close()
    (identity,) = [name for name, run in server.runs.items() if run.fields["displayName"] == "gone"]
    del server.runs[identity]
    server.deleted.add(identity)
    second = make(tmp_path, server.address, name="gone")
    second.truncate({"lines": 1})
    second.log({"x": 1}, 1)
    second.close()
    assert column(only_run(server, "gone"), "x") == [0, 1]


@pytest.mark.usefixtures("again")
def test_arguments_override_the_environment(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "f" * 40)
    server.keys.clear()
    monitor = make(tmp_path, server.address, name="overridden")
    monitor.log({"x": 0}, 0)
    monitor.close()
    assert column(only_run(server, "overridden"), "x") == [0]
    assert len(server.keys - {""}) == 1


@pytest.mark.usefixtures("again")
def test_a_run_without_a_network_lies_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for actor in ("explorer", "trainer"):
        monitor = make(tmp_path, "http://127.0.0.1:9", actor)
        monitor.log({f"{actor}/x": 1}, 1)
        monitor.close()
        assert monitor.num_failures == 0
    parts = list((tmp_path / "monitor" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(parts) == 2 and len({part.name for part in parts}) == 1, "one run, in two parts"


@pytest.mark.runs("docs/monitoring.md", "wandb ")
def test_the_documented_commands_send_it_later(
    tmp_path: Path, server: WandbServer, again: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`WANDB_BASE_URL` names the server, and the key is in the environment, as without a terminal."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monitor = make(tmp_path / "checkpoints" / "my-project" / "my-run", "http://127.0.0.1:9", name="later")
    monitor.log({"actor/x": 0.5}, 1)
    monitor.close()
    lines = page("docs/monitoring.md").lines("wandb ")
    monkeypatch.delenv("WANDB_MODE")
    with programs() as path:
        here = {"PATH": path, "HOME": str(tmp_path), "WANDB_BASE_URL": server.address, "WANDB_API_KEY": KEY}
        login, _ = run_lines(lines, tmp_path, here).values()
    assert f"logged in as: {ENTITY}" in login
    assert column(only_run(server, "later"), "actor/x") == [0.5]
