"""The real Data-Juicer behind its server, in the environment that `TRINITY_DATA_JUICER_PYTHON` or this one has."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from tests.docs.pages import ROOT, page
from tests.docs.terminal import answer, served
from tests.http_service import listening
from trinity.common.config.sections import DataJuicerServiceConfig
from trinity.common.errors import ConfigError, DeadlineError, EnvironmentProblem, ServiceError
from trinity.service.data_juicer.client import DataJuicerClient
from trinity.service.data_juicer.policy import PROTOCOL
from trinity.service.data_juicer.process import PYTHON_ENV_VAR, ServerProcess
from trinity.service.data_juicer.recipe import read_recipe

CONFIG = DataJuicerServiceConfig(auto_start=True)
ROWS = [
    {"question": "what is 1 + 2 ?", "answer": "3", "level": 1},
    {"question": "hi", "answer": "2", "level": 2},
    {"question": "##$$%%&&**", "answer": "x", "level": "three"},
    {"question": "what   is 1 + 3 ?", "answer": "4", "level": 1},
    {"question": "what is 1 + 2 ?", "answer": "3", "level": 1},
]


def recipe(*operators, **more):
    return read_recipe(key="key", operators=operators, text_key="question", num_process=2, **more)


def client(config: DataJuicerServiceConfig) -> DataJuicerClient:
    return DataJuicerClient(config)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    made = ServerProcess(CONFIG)
    yield made
    made.close()


@pytest.fixture
def at_server(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> DataJuicerServiceConfig:
    monkeypatch.setenv("TRINITY_DATA_JUICER_TOKEN", server.token)
    return DataJuicerServiceConfig(server_url=server.url, timeout=60)


def test_filters_mappers_and_deduplicators_say_what_they_did(at_server: DataJuicerServiceConfig) -> None:
    asking = client(at_server)
    operators = (
        {"text_length_filter": {"min_len": 5}},
        {"special_characters_filter": {"max_ratio": 0.8}},
        {"replace_content_mapper": {"pattern": r"\s+", "repl": " "}},
        {"document_deduplicator": {}},
    )
    asking.initialize(recipe(*operators), pipeline="task")
    done = asking.process_task(ROWS)
    asking.close()
    assert [(each.row, each.values) for each in done.rows] == [(0, {}), (3, {"question": "what is 1 + 3 ?"})]
    assert done.rows[0].stats["text_len"] == len(ROWS[0]["question"])
    # what is 1 + 2 ?: of 15 characters, 5 spaces, 2 digits, + and ? are no letters
    assert done.rows[0].stats["special_char_ratio"] == pytest.approx(9 / 15)
    told = [(each["name"], each["rows_in"], each["rows_out"]) for each in done.operators]
    assert told == [
        ("text_length_filter", 5, 4),
        ("special_characters_filter", 4, 3),
        ("replace_content_mapper", 3, 3),
        ("document_deduplicator", 3, 2),
    ]
    assert done.left_out == ["level"]


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ({"python_lambda_mapper": {"lambda_str": "lambda x: x"}}, "runs code"),
        ({"download_file_mapper": {}}, "fetches"),
        ({"vggt_mapper": {}}, "fetches programs"),
        ({"image_blur_mapper": {}}, "not one of those known"),
        ({"text_chunk_mapper": {"max_len": 9, "tokenizer": "someone/model"}}, "fetches a tokenizer"),
        ({"llm_extract_mapper": {"model_params": {"sampling": [{"trust_remote_code": True}]}}}, "with the code"),
        ({"llm_quality_score_filter": {"is_hf_model": True}}, "with the code that comes with it"),
        ({"text_length_filter": {"stats_export_path": "/tmp/x"}}, "writes files"),
        ({"llm_condition_filter": {"model_params": {"trust_remote_code": True}}}, "with the code"),
    ],
)
def test_what_runs_code_fetches_or_writes_is_refused_on_both_sides(
    operator, said, server: ServerProcess, at_server: DataJuicerServiceConfig
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        client(at_server).initialize(recipe(operator), pipeline="task")
    assert caught.value.code == "E5801"
    answer = httpx.post(f"{server.url}/create", json={"operators": [operator]}, headers=authorized(server))
    assert answer.status_code == 403 and said in answer.json()["error"]["message"]


def test_unknown_operators_arguments_and_joins_are_refused(at_server: DataJuicerServiceConfig) -> None:
    for operator, said in (
        ({"text_lenght_filter": {}}, "did you mean text_length_filter?"),
        ({"text_length_filter": {"minlen": 3}}, "min_len"),
        ({"naive_grouper": {}}, "joins rows"),
    ):
        with pytest.raises(ConfigError, match=said):
            client(at_server).initialize(recipe(operator), pipeline="task")


def authorized(server: ServerProcess) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.token}"}


def test_only_the_owner_of_the_token_on_this_host_is_served(server: ServerProcess) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    body = {"operators": [{"text_length_filter": {}}]}
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        (authorized(server) | {"Host": f"evil.example:{port}"}, 403),
        (authorized(server) | {"Origin": "http://evil.example"}, 403),
        (authorized(server), 200),
    ):
        for path in ("/create", "/close"):
            assert httpx.post(server.url + path, json=body, headers=headers).status_code == status
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
    assert httpx.post(f"{server.url}/nothing", json={}, headers=authorized(server)).status_code == 404
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sent:
        head = f"POST /create HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n"
        sent.sendall(f"{head}Content-Length: {2**40}\r\n\r\n".encode())
        assert b" 413 " in sent.recv(4096)
    for content in (b"{", b"[1]", b"\xff"):
        assert httpx.post(f"{server.url}/create", content=content, headers=authorized(server)).status_code == 400


def test_a_model_that_does_not_answer_is_an_error_and_no_score_of_zero(at_server: DataJuicerServiceConfig) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    params = {"base_url": place, "api_key": "none", "max_retries": 0}
    asked = {"api_or_hf_model": "m", "input_keys": ["question"], "field_names": ["q"], "model_params": params}
    asking = client(at_server)
    asking.initialize(recipe({"llm_quality_score_filter": {**asked, "try_num": 1}}), pipeline="task")
    with pytest.raises(ServiceError, match="answered none of 5 calls.*APIConnectionError") as caught:
        asking.process_task(ROWS)
    assert caught.value.code == "E5803"


class Judge(http.server.BaseHTTPRequestHandler):
    """A service of chats whose score follows from the seed; it cannot be read where the question says so."""

    asked: ClassVar[list[tuple[str, int | None]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question, seed = body["messages"][-1]["content"], body.get("seed")
        is_first = (question, seed) not in self.asked and all(question != other for other, _ in self.asked)
        self.asked.append((question, seed))
        scores = dict.fromkeys(("accuracy", "grammar", "informativeness", "coherence"), 1 + (seed or 0) % 5)
        text = "no idea" if "days" in question and is_first else json.dumps({"dimension_scores": scores})
        content = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of the tests clean."""


def test_a_score_follows_from_the_row_and_not_from_the_order_of_the_calls(at_server: DataJuicerServiceConfig) -> None:
    with listening(Judge) as address:
        place = f"{address}/v1"
        asked = {"api_or_hf_model": "m", "input_keys": ["question"], "field_names": ["q"], "min_score": 0.0}
        asked["model_params"] = {"base_url": place, "api_key": "none", "max_retries": 0}
        rows = [{"question": text} for text in ("1 + 2", "how many days", "3 + 4", "1 + 2", "5 + 6", "7 + 8")]

        def scores(rows: list[dict[str, str]], *, np: int, seed: int, seeded: bool = True) -> dict[str, float]:
            asking, Judge.asked[:] = client(at_server), []
            made = read_recipe(key="key", operators=[{"llm_quality_score_filter": asked}], num_process=np)
            made = replace(made, seeded=frozenset({place} if seeded else ()))
            asking.initialize(made, pipeline="task", seed=seed)
            done = asking.process_task(rows)
            asking.close()
            return {rows[each.row]["question"]: each.stats["llm_quality_score"] for each in done.rows}

        first = scores(rows, np=1, seed=1)
        days = [seed for question, seed in Judge.asked if "days" in question]
        assert len(set(days)) == 2, "an answer that cannot be read is asked for again, with another seed"
        assert len({seed for question, seed in Judge.asked if "1 + 2" in question}) == 1
        assert scores(rows[::-1], np=2, seed=1) == first and len(set(first.values())) > 1
        assert scores(rows[2:], np=1, seed=1) == {row["question"]: first[row["question"]] for row in rows[2:]}
        assert scores(rows, np=1, seed=2) != first
        scores(rows, np=1, seed=1, seeded=False)
        assert {seed for _, seed in Judge.asked} == {None}, "a service may not know the argument"


class Held(Judge):
    """Lets the one who waits kill the server first, as often as `kills` says; two processes of it ask at once."""

    kills: ClassVar[int] = 0
    asking: ClassVar[DataJuicerClient]
    one_by_one: ClassVar[threading.Lock] = threading.Lock()

    def do_POST(self) -> None:
        with Held.one_by_one:
            server = Held.asking._server
            if server is None or server.status() is not None:
                return
            if Held.kills > 0:
                Held.kills -= 1
                os.kill(server._process.pid, signal.SIGKILL)
                server._process.wait(30)
                return
        super().do_POST()


@pytest.mark.nightly
def test_a_server_that_is_killed_in_a_request_is_started_anew_once_and_nothing_is_left(tmp_path: Path) -> None:
    with listening(Held) as address:
        params = {"base_url": f"{address}/v1", "api_key": "none", "max_retries": 0}
        asked = {"api_or_hf_model": "m", "input_keys": ["question"], "field_names": ["q"], "model_params": params}
        asking = Held.asking = DataJuicerClient(CONFIG, log=tmp_path / "log")
        asking.initialize(
            recipe({"text_length_filter": {"min_len": 5}}, {"llm_quality_score_filter": {**asked, "min_score": 0.0}}),
            pipeline="experience",
        )
        first, Held.kills = asking._server, 1
        assert [each.row for each in asking.process_experience(ROWS).rows] == [0, 2, 3, 4]
        second, Held.kills = asking._server, 2
        assert first is not None and second is not None and second is not first
        with pytest.raises(ServiceError, match="ended with status -9") as caught:
            asking.process_experience(ROWS)
        assert caught.value.code == "E5802" and Held.kills == 0
        third = asking._server
        asking.close()
    for each in (first, second, third):
        assert each is not None and each.status() is not None and not Path(each._scratch.name).exists()


@pytest.mark.parametrize("said", [{"status": "ok", "data_juicer": "1.0"}, {"status": "ok", "protocol": PROTOCOL + 1}])
def test_a_server_of_another_version_is_named(said: dict[str, object]) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Keep the output of the tests clean."""

    protocol = pytest.raises(EnvironmentProblem, match="another version: its protocol is")
    with listening(Other) as url, protocol as caught:
        client(DataJuicerServiceConfig(server_url=url)).connect()
    assert caught.value.code == "E3444"


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    text = (
        "import os, signal\nfrom trinity.service.data_juicer.process import ServerProcess\n"
        "from trinity.common.config.sections import DataJuicerServiceConfig\n"
        "made = ServerProcess(DataJuicerServiceConfig(auto_start=True))\n"
        "print(made._process.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    end = time.monotonic() + 10
    while is_alive(int(done.stdout)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_alive(int(done.stdout))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_waits_have_deadlines_and_missing_things_are_named(at_server: DataJuicerServiceConfig, tmp_path: Path) -> None:
    slow = client(at_server.model_copy(update={"timeout": 0.05}))
    with pytest.raises(DeadlineError, match="service.data_juicer.timeout") as late:
        slow.initialize(recipe({"text_length_filter": {"min_len": 5}}), pipeline="task")
        slow.process_task(ROWS * 100)
    assert late.value.code == "E5307"
    with pytest.raises(EnvironmentProblem, match="no Data-Juicer server answers") as nobody:
        client(DataJuicerServiceConfig(server_url="http://127.0.0.1:9")).connect()
    assert nobody.value.code == "E3442"
    with pytest.raises(EnvironmentProblem, match="cannot be run") as missing:
        ServerProcess(DataJuicerServiceConfig(auto_start=True, python=str(tmp_path / "python")))
    assert missing.value.code == "E3440"
    with pytest.raises(EnvironmentProblem, match="token") as wrong:
        client(at_server.model_copy(update={"token": "wrong"})).initialize(
            recipe({"text_length_filter": {}}), pipeline="task"
        )
    assert wrong.value.code == "E3443"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EnvironmentProblem, match="cannot be listened at") as busy:
            ServerProcess(DataJuicerServiceConfig(auto_start=True, port=taken.getsockname()[1]))
    assert busy.value.code == "E3441"


def test_recipes_are_files_of_this_machine(tmp_path: Path) -> None:
    """X17."""
    good = tmp_path / "recipe.yaml"
    good.write_text(
        "np: 3\ntext_keys: [answer]\nprocess:\n  - text_length_filter: {min_len: 2}\n  - clean_email_mapper\n"
    )
    found = read_recipe(key="key", config_path=str(good))
    assert found.operators == (("text_length_filter", {"min_len": 2}), ("clean_email_mapper", {}))
    assert (found.num_process, found.text_key) == (3, "answer")
    (tmp_path / "bad.yaml").write_text("process: !!python/object/apply:os.system ['touch marker']\n")
    for path, code in (
        ("https://example.com/recipe.yaml", "E1931"),
        (str(tmp_path), "E1931"),
        (str(tmp_path / "none.yaml"), "E1931"),
        (str(tmp_path / "bad.yaml"), "E1931"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_recipe(key="key", config_path=path)
        assert caught.value.code == code
    for operators, code in (((), "E1930"), (({"a": {}, "b": {}},), "E1932"), (({"a": 3},), "E1932")):
        with pytest.raises(ConfigError) as caught:
            read_recipe(key="key", operators=operators)
        assert caught.value.code == code


@pytest.mark.runs("docs/data-juicer.md", "TRINITY_DATA_JUICER_TOKEN=")
def test_the_documented_command_starts_a_server(tmp_path: Path) -> None:
    """In the root of the repository; `~/data-juicer` is the environment that has Data-Juicer here."""
    (line,) = page("docs/data-juicer.md").lines("TRINITY_DATA_JUICER_TOKEN=")
    place = Path(os.environ.get(PYTHON_ENV_VAR) or sys.executable).parents[1]
    (tmp_path / "data-juicer").symlink_to(place, target_is_directory=True)
    with served(line, ROOT, r'"port": (5005)', HOME=str(tmp_path)) as port:
        assert answer(f"http://127.0.0.1:{port}/health").status_code == 200
