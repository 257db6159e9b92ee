"""The viewer: what it reads of a database, its command and its server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import typer
import yaml
from sqlalchemy import create_engine, update

from tests.cli.test_commands import _log_as_before, invoke  # noqa: F401
from tests.e2e.tiny_run import TinyRun
from tests.manager.viewer_page import Write
from tests.prepared import DEADLINE_S
from trinity.buffer.records import Records
from trinity.buffer.wanted import Wanted
from trinity.common.errors import EnvironmentProblem, ExitCode
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.manager import serving
from trinity.manager.viewer import server
from trinity.manager.viewer.settings import ViewerSettings

PORT_S = 120.0


def test_filters_pages_and_groups_are_those_of_the_table(write: Write) -> None:
    file = write(12, changes={3: {"state": "dropped", "drop_reason": "oversize"}, 12: {"buffer": "other"}})
    records = Records(str(file))

    def found(number: int = 0, size: int = 50, **wanted: Any) -> list[int]:
        rows = [row.id for row in records.page(Wanted(**wanted), number=number, size=size)]
        all_found = records.search(Wanted(**wanted))
        assert all_found.below is None and all_found.ids[number * size : (number + 1) * size] == rows
        return rows

    assert found() == list(range(12, 0, -1))
    assert (found(size=5), found(2, size=5), found(3, size=5)) == ([12, 11, 10, 9, 8], [2, 1], [])
    assert found(buffer="mine") == list(range(11, 0, -1)) and found(states=("dropped",)) == [3]
    assert found(task="1/2") == [12, 11, 10, 9] and found(least_reward=0.2, most_reward=0.4) == [5, 4, 3]
    assert found(text="question 1") == [8, 7, 6, 5] and found(text="answer 11") == [12]
    assert found(text="%") == found(text="_nswer") == [] and found(text="<script>") == [1], "no patterns, plain text"
    one = records.one(6)
    assert one is not None and one.to_experience().reward == 0.5 and records.one(99) is None
    assert [row.id for row in records.group(one, most=3)] == [5, 6, 7]
    assert all("blob" not in vars(row) for row in records.page(Wanted(), number=0, size=50))


def test_reading_changes_nothing_and_sees_what_a_run_appends_meanwhile(write: Write) -> None:
    file = write(4)
    before = file.read_bytes()
    records = Records(str(file))
    engine = create_engine("sqlite://", creator=records._engine.raw_connection)  # of the viewer itself
    with pytest.raises(Exception, match="readonly"), engine.begin() as connection:
        connection.execute(update(ExperienceModel).values(reward=0.0))
    assert file.read_bytes() == before and records.search(Wanted()).ids == [4, 3, 2, 1]
    write(0, changes={4: {"reward": 9.0}})
    assert [row.reward for row in records.page(Wanted(), number=0, size=1)] == [9.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.db", r"E3435.*there is no database .*none\.db.*trinity validate"),
        ("text.db", r"E3435.*file is not a database.*trinity debug --module workflow"),
        ("empty.db", r"E3435.*no such table: experience"),
        ("mysql://user:secret@host/x", r"E3435.*sqlite:///<file>, a file or postgresql://"),
        ("://", r"E3435.*sqlite:///<file>"),
    ],
)
def test_what_is_no_database_of_experiences_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "text.db").write_text('{"task": 0}\n' * 100)
    (tmp_path / "empty.db").touch()
    with pytest.raises(EnvironmentProblem, match=said) as caught:
        Records(name if "://" in name else str(tmp_path / name))
    assert "secret" not in str(caught.value) and not (tmp_path / "none.db").exists()


class Serving:
    """A `trinity` command that serves a page."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trinity", *words],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r"(?:viewer|studio): (http://127\.0\.0\.1:(\d+)/[\w-]{20,}/) ", line)
            if found:
                self.address, self.port = found[1], int(found[2])
                break
        else:
            raise AssertionError(f"the server ended with status {self.process.wait()}")

    def get(self, address: str) -> httpx.Response:
        """Return the answer once the server listens."""
        end = time.monotonic() + PORT_S
        while True:
            try:
                return httpx.get(address, timeout=30.0)
            except httpx.TransportError:
                assert self.process.poll() is None and time.monotonic() < end
                time.sleep(0.1)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.slow
def test_the_server_answers_at_its_secret_path_of_the_loopback_address_alone(tmp_path: Path, write: Write) -> None:
    with Serving(tmp_path, "view", "--url", str(write(4)), "--port", "0") as viewing:
        answer = viewing.get(viewing.address)
        assert answer.status_code == 200 and "<title>Streamlit</title>" in answer.text
        assert viewing.get(f"{viewing.address}_stcore/health").text == "ok"
        root = f"http://127.0.0.1:{viewing.port}"
        assert [viewing.get(f"{root}/{path}").status_code for path in ("", "_stcore/health", "x/")] == [404] * 3
        listening = [each.laddr for each in psutil.Process(viewing.process.pid).net_connections("inet")]
        assert {place.ip for place in listening if place.port == viewing.port} == {"127.0.0.1"}
        assert str(tmp_path) not in Path(f"/proc/{viewing.process.pid}/cmdline").read_text(), "an address may be secret"
        viewing.process.send_signal(signal.SIGINT)
        assert viewing.process.wait(DEADLINE_S) == 0


def test_the_viewer_of_debug_shows_what_debug_writes_and_that_of_a_run_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both commands as the seed's answer has them, up to the start of the server."""
    run = TinyRun(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    (tmp_path / "plugins").mkdir()
    monkeypatch.chdir(tmp_path)
    served: list[tuple[ViewerSettings, int]] = []

    def serve(settings: ViewerSettings, *, port: int, say: Callable[[str], None]) -> None:
        served.append((settings, port))
        raise typer.Exit  # it does not return

    monkeypatch.setattr(server, "serve_viewer", serve)
    debug = ("debug", "--config", "run.yaml", "--module", "viewer")
    for words in (
        debug,
        (*debug, "--output_file", "mine.db", "--plugin_dir", "plugins", "-p", "9000"),
        (*debug, "--output-dir", "there"),
        (*debug, "--output-file", "profile.html"),
        ("view", "--config", "run.yaml"),
        ("view", "run.yaml", "--url", "other.db", "--table", "kept", "--tokenizer", "there", "-p", "0"),
        ("view", "--url", "other.db"),
    ):
        assert invoke(*words).exit_code == ExitCode.DONE
    store = f"sqlite:///{run.job / 'buffer' / 'experience.db'}"
    assert [settings.url for settings, _ in served] == [
        "debug_output/experiences.db", "mine.db", "there/experiences.db", "profile.db", store, "other.db", "other.db",
    ]  # fmt: skip
    assert [Path(settings.tokenizer).name for settings, _ in served] == ["model"] * 5 + ["there", ""]
    assert [port for _, port in served] == [8502, 9000, 8502, 8502, 8502, 0, 8502] and served[5][0].buffer == "kept"
    wrong = invoke("view", "--config", "run.yaml", "--stage", "second")
    assert wrong.exit_code == ExitCode.USAGE and "E1921" in wrong.output and "'second'" in wrong.output
    neither = invoke("view")
    assert neither.exit_code == ExitCode.USAGE and "no file is given" in neither.output


def test_a_port_that_is_taken_and_streamlit_that_is_missing_are_said(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B81: with the process that holds it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = ViewerSettings(str(write(1)))
        with pytest.raises(EnvironmentProblem, match=rf"E3431.*process {os.getpid()} .*give another --port, or 0"):
            server.serve_viewer(settings, port=taken.getsockname()[1], say=print)
    monkeypatch.setattr(serving, "is_installed", lambda package: False)
    with pytest.raises(EnvironmentProblem, match=r"E3301.*streamlit.*pip install 'trinity-rft\[studio\]'"):
        server.serve_viewer(settings, port=0, say=print)
