"""The viewer: what it reads of a database, its page run by Streamlit, and its server."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import typer
import yaml
from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session
from streamlit.testing.v1 import AppTest

from tests.cli.test_commands import _log_as_before, invoke  # noqa: F401
from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model
from trinity.buffer.records import Records
from trinity.buffer.wanted import Wanted
from trinity.common.errors import EnvironmentProblem, ExitCode
from trinity.common.experience import EID, Experience
from trinity.common.schema.sql_schema import Base, ExperienceModel
from trinity.manager import serving
from trinity.manager.viewer import page, server
from trinity.manager.viewer.settings import ViewerSettings
from trinity.manager.viewer.shown import token_rows

HOSTILE = "<script>alert(1)</script> ![x](http://evil.test/x.png) [a](javascript:b) :red[c] $x$ \x1b[31m"
PORT_S = 120.0
Write = Callable[..., Path]


def rows(count: int) -> list[Experience]:
    """Experiences of tasks with four runs each; the last token of an answer is not the model's."""
    return [
        Experience(
            eid=EID(1, number // 4, number % 4, 0),
            tokens=[5, 6, 7, 8, 9],
            prompt_length=2,
            logprobs=[-0.5, -1.0, 0.0],
            advantages=[0.25, 0.25, 0.0],
            action_mask=[True, True, False],
            reward=number / 10,
            metrics={"accuracy": number / 20},
            prompt_text=f"question {number // 4}",
            response_text=f"answer {number}" if number else HOSTILE,
            info={"model_version": 3, "note": HOSTILE},
        )
        for number in range(count)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a database of experiences; a field named here is changed in the row of that id."""

    def written(count: int = 8, *, buffer: str = "mine", changes: dict[int, dict[str, Any]] | None = None) -> Path:
        file = tmp_path / "some experiences?.db"
        engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(file))
        Base.metadata.create_all(
            engine, tables=[Base.metadata.tables[name] for name in ("experience", "experience_blob")]
        )
        with Session(engine) as session:
            session.add_all(ExperienceModel.from_experience(each, run="r", buffer=buffer) for each in rows(count))
            session.commit()
            for number, fields in (changes or {}).items():
                for name, value in fields.items():
                    setattr(session.get(ExperienceModel, number), name, value)
            session.commit()
        engine.dispose()
        return file

    return written


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    """Runs the page as its server would."""

    def run(settings: ViewerSettings, **query: str) -> AppTest:
        for name, value in settings.environment().items():
            monkeypatch.setenv(name, value)
        test = AppTest.from_file(str(Path(page.__file__)), default_timeout=60)
        for name, value in query.items():
            test.query_params[name] = value
        return test.run()

    yield run
    page._records.clear()


def codes(test: AppTest) -> list[str]:
    return [each.value for each in test.code]


def ids(test: AppTest) -> list[int]:
    return [int(number) for number in test.dataframe[0].value["id"]]


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


def test_every_token_has_its_place_part_and_numbers() -> None:
    lines = token_rows(rows(1)[0], lambda token: f"<{token}>")
    assert [line["text"] for line in lines] == ["<5>", "<6>", "<7>", "<8>", "<9>"]
    assert [line["part"] for line in lines] == ["prompt", "prompt", "trained", "trained", "not trained"]
    assert [line.get("log-prob") for line in lines] == [None, None, -0.5, -1.0, 0.0]
    assert [line.get("advantage") for line in lines] == [None, None, 0.25, 0.25, 0.0]
    assert [line.get("probability") for line in lines[2:]] == pytest.approx([0.60653, 0.36788, 1.0], abs=1e-5)
    assert "return" not in lines[2]


def test_the_page_shows_an_experience_its_tokens_its_group_and_its_facts(
    tmp_path: Path, write: Write, shown: Callable[..., AppTest]
) -> None:
    tiny_model(tmp_path / "model")
    test = shown(ViewerSettings(str(write(8)), "mine", str(tmp_path / "model")))
    assert not test.exception and test.caption[0].value == "8 experiences, page 1 of 1"
    assert ids(test) == [8, 7, 6, 5, 4, 3, 2, 1]
    assert codes(test)[:2] == ["question 1", "answer 7"] and test.query_params["id"] == "8"
    assert [text for text in codes(test)[2:] if text.startswith("answer")] == [f"answer {run}" for run in range(4, 8)]
    tokens = test.dataframe[1].value
    assert list(tokens["token"]) == [5, 6, 7, 8, 9] and list(tokens["part"])[-1] == "not trained"
    assert all(isinstance(text, str) and text.startswith(("'", '"')) for text in tokens["text"])
    assert '"accuracy": 0.35' in test.json[0].value
    test.selectbox(key="chosen").select(5).run()
    assert codes(test)[1] == "answer 4" and test.query_params["id"] == "5"
    test.text_input(key="text").set_value("answer 2").run()
    assert ids(test) == [3]
    test.text_input(key="text").set_value("nowhere").run()
    assert not test.exception and test.info[0].value == "No experience meets the filters."
    assert codes(test)[1] == "answer 4", "what was chosen stays"


def test_a_link_opens_its_experience_also_where_the_table_does_not_show_it(
    write: Write, shown: Callable[..., AppTest]
) -> None:
    test = shown(ViewerSettings(str(write(page.PAGE_SIZE + 8))), id="3")
    assert not test.exception and 3 not in ids(test) and codes(test)[1] == "answer 2"
    test.number_input(key="page").set_value(2).run()
    assert ids(test) == [8, 7, 6, 5, 4, 3, 2, 1]
    test.text_input(key="text").set_value("answer 57").run()
    assert not test.exception and ids(test) == [58], "one page is left"
    for bad in ("x", "-1", "²", "9" * 40):
        assert not shown(ViewerSettings(str(write(0))), id=bad).exception


def test_what_a_model_wrote_is_text_and_nothing_else(write: Write, shown: Callable[..., AppTest]) -> None:
    """Markdown, HTML and formulas would be interpreted in any other element (X21)."""
    test = shown(ViewerSettings(str(write(1, changes={1: {"task_id": HOSTILE, "drop_reason": HOSTILE}}))))
    assert not test.exception and codes(test)[1] == HOSTILE
    interpreted = [*test.markdown, *test.caption, *test.title, *test.header, *test.subheader]
    interpreted += [*test.error, *test.warning, *test.info]
    assert len(interpreted) > 3 and not [each.value for each in interpreted if "script" in each.value]
    assert not any(each.proto.allow_html for each in test.markdown)


def test_an_experience_without_its_payload_has_its_texts(write: Write, shown: Callable[..., AppTest]) -> None:
    test = shown(ViewerSettings(str(write(2, changes={2: {"experience_bytes": None, "state": "trained"}}))))
    assert not test.exception and test.warning[0].value == "This experience has its texts only."
    assert "E5104" in codes(test)[0] and "answer 1" in codes(test) and len(test.dataframe) == 1


def test_a_database_that_goes_and_a_tokenizer_that_is_not_there_are_said(
    tmp_path: Path, write: Write, shown: Callable[..., AppTest]
) -> None:
    test = shown(ViewerSettings(str(write(2)), tokenizer=str(tmp_path / "nowhere")))
    assert not test.exception and "E3102" in codes(test)[0] and list(test.dataframe[1].value["text"]) == [""] * 5
    test = shown(ViewerSettings(str(tmp_path / "gone.db")))
    assert (
        not test.exception and test.error[0].value == "The experiences cannot be shown." and "E3435" in codes(test)[0]
    )


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
        assert viewing.process.wait(60) == 0


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
