"""The service with real clients, in this process: what it records, what it refuses, and what it holds."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.explorer.proxy.in_process import KEY, Service
from trinity.buffer.pipelines import ExperiencePipeline
from trinity.common.errors import EnvironmentProblem
from trinity.explorer.proxy.client import ServeError

Make = Callable[..., Service]
MOST_PROMPT, MOST = 24, 48  # tokens: `max_prompt_tokens` and `max_model_len` of the tiny run


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("service") / "run")
    yield made
    made.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Service] = []

    def one(**explorer: Any) -> Service:
        made.append(Service(tmp_path / f"run{len(made)}", **explorer))
        return made[-1]

    yield one
    for each in made:
        each.close()


REFUSED: dict[str, Any] = {
    "nan": b'{"reward": NaN, "msg_ids": ["a"]}',
    "infinity": b'{"reward": -Infinity, "msg_ids": ["a"]}',
    "overflow": b'{"reward": 1e400, "msg_ids": ["a"]}',
    "long integer": b'{"reward": 1' + b"0" * 400 + b', "msg_ids": ["a"]}',
    "no reward": {"msg_ids": ["a"]},
    "truth": {"reward": True, "msg_ids": ["a"]},
    "text": {"reward": "1", "msg_ids": ["a"]},
    "no ids": {"reward": 1.0},
    "empty ids": {"reward": 1.0, "msg_ids": []},
    "id of a number": {"reward": 1.0, "msg_ids": [1]},
    "long id": {"reward": 1.0, "msg_ids": ["a" * 300]},
    "one id": {"reward": 1.0, "msg_ids": "a"},
    "another field": {"reward": 1.0, "msg_ids": ["a"], "rewards": 1},
    "a list": [1.0],
    "no JSON": b"{",
    "deep JSON": b"[" * 100_000,
    "a run without a task": {"reward": 1.0, "msg_ids": ["a"], "run_id": 1},
    "a negative run": {"reward": 1.0, "task_id": "t", "run_id": -1},
    "a run of a half": {"reward": 1.0, "task_id": "t", "run_id": 0.5},
    "a task with a slash": {"reward": 1.0, "task_id": "a/b"},
    "a task of a number": {"reward": 1.0, "task_id": 7},
    "a long task": {"reward": 1.0, "task_id": "t" * 65},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_feedback_that_says_no_reward_is_a_422(service: Service, what: str):
    answer = service.post("/feedback", REFUSED[what])
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_id_is_a_422_and_a_foreign_run_a_403(service: Service):
    """B111 and X24."""
    answer = service.post("/feedback", {"reward": 1, "msg_ids": ["chatcmpl-" + "0" * 32]})
    assert answer.status_code == 422 and answer.json()["error"]["code"] == "unknown_id"
    answer = service.post("/feedback", {"reward": 1, "task_id": "never"})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_run"
    mine = service.client("mine", 1)
    body = {"reward": 1, "msg_ids": [service.ask(mine).id], "task_id": "mine", "run_id": 2}
    answer = service.post("/feedback", body)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_run"
    assert mine.feedback(1.0)["updated"] == 1, "the answer is where it was, without a reward"


@pytest.mark.difference("`explorer.listen_address`")
@pytest.mark.parametrize("path", ["/feedback", "/commit"])
def test_what_changes_anything_needs_the_token(service: Service, path: str):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"Authorization": "Bearer"}):
        answer = httpx.post(f"{service.address}{path}", json={"reward": 1, "msg_ids": ["a"]}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert httpx.get(f"{service.address}/status").status_code == 401
    assert httpx.get(f"{service.address}/health").json() == {"status": "ok"}
    foreign = httpx.post(f"{service.address}{path}", headers={b"Authorization": "Bearer \N{SNOWMAN}".encode()})
    assert foreign.status_code == 401


def answered(service: Service, method: str, path: str, headers: dict[str, str]) -> int:
    """Return the status; unlike httpx, this client also sends what ends with a space."""
    host, _, port = service.address.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host.replace("0.0.0.0", "127.0.0.1"), int(port), timeout=30)
    try:
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("written", ["", "  ", "EMPTY", f" {KEY} "])
def test_no_key_that_may_be_written_lets_anybody_in_without_it(make: Make, written: str):
    """An empty one is what a variable that is not set gives, as in `${oc.env:TOKEN,}`."""
    service = make(rollout_model={"api_key": written}, listen_address="0.0.0.0")
    token, routes = service.on_loop(service.side.served()).token, service.routes()
    assert (token is None) == (KEY in written) and {"/feedback", "/commit", "/status", "/v1/models"} <= routes.keys()
    wrong = [{}, *({"Authorization": said} for said in ("", "Bearer", "Bearer ", "Bearer EMPTY", "Bearer wrong", "x"))]
    wrong += [{"x-api-key": said} for said in ("", " ", "EMPTY")]
    for path, method in routes.items():
        for headers in wrong if path != "/health" else ():
            assert answered(service, method, path, headers) == 401, (path, headers)
    right = {"Authorization": f"Bearer {token or KEY}"}
    assert [answered(service, "GET", path, right) for path in ("/status", "/v1/models")] == [200, 200]


def test_a_body_that_is_too_large_is_a_413(service: Service):
    assert service.post("/feedback", b" " * (1024 * 1024 + 1)).status_code == 413


@pytest.mark.parametrize(
    "headers",
    [{"X-Trinity-Task-Id": "a/b"}, {"X-Trinity-Task-Id": "t", "X-Trinity-Run-Id": "-1"}, {"X-Trinity-Run-Id": "1"}],
)
def test_headers_that_name_no_run_are_a_400(service: Service, headers: dict[str, str]):
    body = {"model": "model", "messages": [{"role": "user", "content": "1+1="}]}
    answer = service.post("/v1/chat/completions", body, **headers)
    assert answer.status_code == 400 and answer.json()["error"]["param"] in ("task_id", "run_id")


@pytest.mark.difference("`/feedback`", "`TrinityClient.get_metrics`")
def test_a_second_reward_of_a_committed_answer_is_a_409_and_the_same_one_is_not(service: Service):
    client = service.client("once")
    answer = service.ask(client)
    client.feedback(1.0, [answer.id])
    client.feedback(0.5, [answer.id])
    assert client.commit()["answers"] >= 1
    assert client.feedback(0.5, [answer.id]) == {"status": "success", "updated": 0, "unchanged": 1}
    for ids in ([answer.id], None):
        with pytest.raises(ServeError, match="is committed with reward 0.5") as second:
            client.feedback(1.0, ids)
        assert second.value.status == 409
    with pytest.raises(ServeError, match="finite") as nan:
        client.feedback(float("nan"), [answer.id])
    assert nan.value.status == 422


def test_the_temperature_is_that_of_the_run_and_a_seed_gives_the_same_answer(
    service: Service, caplog: pytest.LogCaptureFixture
):
    client = service.client("seeded")
    before = client.get_metrics()["other_temperature_count"]
    same = {service.ask(client, seed=5, temperature=each).choices[0].message.content for each in (0.0, 1.0, 2.0)}
    others = {service.ask(client).choices[0].message.content for _ in range(4)}
    assert len(same) == 1 and len(others) > 1
    assert client.get_metrics()["other_temperature_count"] == before + 2


def test_another_model_is_refused_by_the_names_of_this_one(make: Make):
    service = make(rollout_model={"name": "gpt-4o"})
    (name,) = service.client().models()
    assert name == "gpt-4o"
    for each in (name, "model", str(service.side.service.config.model.model_path)):
        assert service.ask(service.client(), model=each).model == name
    with pytest.raises(openai.BadRequestError, match="there is no model 'gpt-4' here; ask for 'gpt-4o' or ") as refused:
        service.ask(service.client(), model="gpt-4")
    assert refused.value.code == "model_not_found" and service.client().get_metrics()["answer_count"] == 3


def test_a_prompt_that_is_too_long_is_no_answer(service: Service):
    client = service.client()
    before = client.get_metrics()["unrewarded_count"]
    model = service.side.service.config.model
    assert (model.max_prompt_tokens, model.max_model_len) == (MOST_PROMPT, MOST), "the keys are resolved"
    for tokens in (MOST, MOST * 3):
        with pytest.raises(openai.BadRequestError, match="max_model_len") as refused:
            service.ask(client, messages=[{"role": "user", "content": "1" * tokens}])
        assert refused.value.code == "context_length_exceeded"
    assert client.get_metrics()["unrewarded_count"] == before
    answer = service.ask(client, messages=[{"role": "user", "content": "1" * (MOST_PROMPT + 1)}])
    assert answer.usage.prompt_tokens > MOST_PROMPT
    assert client.get_metrics()["unrewarded_count"] == before + 1


def test_many_callers_at_once_are_recorded_once_each(service: Service):
    before = service.client().get_metrics()["answer_count"]

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, limits=limits, timeout=60) as client:
            body = {"model": "model", "messages": [{"role": "user", "content": "1+1="}], "max_tokens": 2}
            calls = [client.post(f"{service.address}/v1/chat/completions", json=body) for _ in range(200)]
            return [answer.json()["id"] for answer in await asyncio.gather(*calls)]

    ids = asyncio.run(all_of_them())
    assert len(set(ids)) == 200 and service.client().get_metrics()["answer_count"] == before + 200
    answer = service.post("/feedback", {"reward": 1, "msg_ids": ids})
    assert answer.json() == {"status": "success", "updated": 200, "unchanged": 0}
    assert service.post("/commit", {}).json()["experiences"] == 200


@pytest.mark.difference("Calls without a reward")
def test_a_full_record_drops_what_has_no_reward_and_then_asks_for_a_commit(make: Make):
    service = make(rollout_model={"history_limit": 2})
    client = service.client("full")
    ids = [service.ask(client).id for _ in range(3)]
    found = client.get_metrics()
    assert (found["unrewarded_count"], found["dropped_count"], found["history_limit"]) == (2, 1, 2)
    with pytest.raises(ServeError, match="1 dropped"):
        client.feedback(1.0, ids)
    client.feedback(1.0, ids[1:])
    with pytest.raises(openai.InternalServerError, match="2 rewarded responses wait for /commit") as full:
        service.ask(client)
    assert full.value.status_code == 503
    assert client.commit()["answers"] == 2 and service.ask(client).id


def test_a_full_buffer_refuses_a_commit_and_keeps_what_is_rewarded(make: Make):
    service = make()
    client = service.client("queue")
    for _ in range(2):
        for run in range(16):
            caller = service.client("queue", run)
            caller.feedback(0.0, [service.ask(caller).id])
        if _ == 0:
            assert client.commit()["experiences"] == 16
    with pytest.raises(ServeError, match="is full .capacity 16.") as full:
        client.commit()
    assert full.value.status == 503 and client.get_metrics()["rewarded_count"] == 16


def test_a_conversation_is_remembered_with_its_tokens_as_long_as_there_is_room(
    make: Make, caplog: pytest.LogCaptureFixture
):
    service, counts = make(rollout_model={"history_limit": 6}), ("foreign_turn_count", "forgotten_caller_count")
    first = service.ask(service.client("first"), seed=0)
    assert len(first.choices[0].message.content) == 4, "a special token was drawn: take another seed"
    said = [
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "2+2="},
    ]
    service.ask(service.client("first"), messages=said)
    assert service.on_loop(service.side.service._engine.stats())["continued_turns"] == 1
    for number in range(4):
        service.ask(service.client(f"other{number}"))
    assert [service.client().get_metrics()[name] for name in counts] == [0, 2]
    service.ask(service.client("first"), messages=said)
    assert service.on_loop(service.side.service._engine.stats())["continued_turns"] == 1
    found = service.client().get_metrics()
    assert (found["foreign_turn_count"], found["forgotten_caller_count"]) == (1, 3)
    assert caplog.text.count("are remembered no longer") == 1 and "history_limit" in caplog.text
    service.client("first").feedback(1.0)
    service.client().commit()
    logged = service.job.rglob("metrics.jsonl")
    lines = [json.loads(line) for file in logged for line in file.read_text().splitlines()]
    assert [(line[f"rollout/{counts[0]}"], line[f"rollout/{counts[1]}"]) for line in lines] == [(1, 3)]


def test_a_port_that_is_taken_is_said(service: Service, tmp_path: Path):
    """B81: with the process that holds it."""
    port = int(service.address.rpartition(":")[2])
    with pytest.raises(EnvironmentProblem, match=f"explorer.proxy_port {port} cannot be listened at") as taken:
        Service(tmp_path / "run", proxy_port=port)
    assert taken.value.code == "E3435" and f"process {os.getpid()} (" in str(taken.value)
    assert "0 for a free one" in str(taken.value)


def test_weights_that_cannot_be_had_are_told_and_the_old_ones_answer(make: Make, caplog: pytest.LogCaptureFixture):
    service = make()
    (service.job / "synchronizer.json").write_text("{")
    for _ in range(200):
        if "responses still come from model version 0" in caplog.text:
            break
        time.sleep(0.05)
    assert "responses still come from model version 0" in caplog.text
    assert service.ask(service.client()).id and service.client().alive()


def test_an_operator_that_fails_is_a_500_and_the_answers_stay_rewarded(make: Make):
    service = make()
    client = service.client("fails")
    client.feedback(1.0, [service.ask(client).id])
    failing = ExperiencePipeline([("failing", _Failing())])
    committer = service.side.service._committer
    whole, committer._pipeline = committer._pipeline, failing
    with pytest.raises(ServeError, match="experience operator failing failed on 1 experiences") as failed:
        client.commit()
    assert failed.value.status == 500 and client.get_metrics()["rewarded_count"] == 1
    committer._pipeline = whole
    assert client.commit()["experiences"] == 1


class _Failing:
    def process(self, exps: list[Any]) -> Any:
        raise ValueError("no")
