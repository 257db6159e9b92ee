"""Who may ask the endpoint, and what it bears (X05 to X10, X24 and their like of the list of hostile cases)."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.explorer.api.test_endpoint import MESSAGES, Served
from trinity.common.models.model import ModelWrapper
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.api.limits import EndpointLimits

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "1+1=", "max_tokens": 2},
    "/v1/responses": {"input": "1+1=", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
}
PAGES = ("/v1/models", "/metrics")
LIMITS = EndpointLimits(body_bytes=100_000, receive_s=1.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"), limits=LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(served: Served) -> ModelWrapper:
    return served.rollout()


def ask(model: ModelWrapper, path: str, **headers: str) -> httpx.Response:
    url = model.api_address + path
    with httpx.Client(trust_env=False, timeout=30, headers=headers) as client:
        return client.post(url, json=BODIES[path]) if path in BODIES else client.get(url)


def raw(model: ModelWrapper, *pieces: bytes, pause_s: float = 0.0, wait_s: float = 10.0) -> bytes:
    """Return what the server says to bytes that come in pieces, until it ends the connection."""
    host, _, port = model.api_address.removeprefix("http://").partition(":")
    found = b""
    with socket.create_connection((host, int(port)), timeout=wait_s) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause_s)
            while part := connection.recv(65536):
                found += part
        except (ConnectionError, TimeoutError):
            pass
    return found


def test_listeners_are_on_the_loopback_interface_alone(model: ModelWrapper) -> None:
    address, _, port = model.api_address.removeprefix("http://").rpartition(":")
    own = [c for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert address == "127.0.0.1" and int(port) in {connection.laddr.port for connection in own}
    assert {connection.laddr.ip for connection in own} <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("path", [*BODIES, *PAGES])
def test_every_route_asks_for_the_token(model: ModelWrapper, path: str) -> None:
    token = model.api_key
    wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
    wrongly = (f"Bearer {wrong}", "Bearer", f"Basic {token}", token)
    given = [{}, *({"Authorization": text} for text in wrongly), {"x-api-key": wrong}, {"x-api-key": ""}]
    before = len(model.history)
    for headers in given:
        refused = ask(model, path, **headers)
        assert refused.status_code == 401 and token not in refused.text, headers
    assert len(model.history) == before
    for headers in ({"Authorization": f"Bearer {token}"}, {"x-api-key": token}):
        assert ask(model, path, **headers).status_code == 200


def test_health_and_unknown_paths_tell_nothing(model: ModelWrapper) -> None:
    assert httpx.get(f"{model.api_address}/health", trust_env=False).json() == {"status": "ok"}
    for path in ("/v1/nothing", "/docs", "/redoc", "/../etc/passwd"):
        assert httpx.get(model.api_address + path, trust_env=False).status_code == 404
    assert httpx.delete(f"{model.api_address}/v1/models", trust_env=False).status_code == 405


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/health"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Host": "127.0.0.1.example:80"},
        {"Origin": "https://page.example"},
        {"Origin": "null"},
    ],
    ids=["host", "longer-host", "origin", "no-origin"],
)
def test_pages_and_names_of_others_are_refused(model: ModelWrapper, path: str, headers: dict[str, str]) -> None:
    refused = ask(model, path, Authorization=f"Bearer {model.api_key}", **headers)
    assert refused.status_code == 403


def test_this_machine_may_ask_by_each_of_its_names(model: ModelWrapper) -> None:
    port = model.api_address.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "localhost"):
        headers = {"Authorization": f"Bearer {model.api_key}", "Host": host, "Origin": f"http://{host}"}
        assert ask(model, "/v1/models", **headers).status_code == 200


def test_an_address_of_a_network_asks_for_the_token_too(served: Served) -> None:
    endpoint = Endpoint(host="0.0.0.0")
    model = ModelWrapper(served.engine, config=served.config, clients=endpoint)
    try:
        address = endpoint.address.replace("0.0.0.0", "127.0.0.1")
        headers = {"Host": "a.name.of.the.network"}
        assert httpx.get(f"{address}/v1/models", headers=headers, trust_env=False).status_code == 401
        headers["Authorization"] = f"Bearer {model.api_key}"
        assert httpx.get(f"{address}/v1/models", headers=headers, trust_env=False).status_code == 200
        assert len(model.api_key) >= 32
    finally:
        endpoint.close()


def test_a_taken_port_is_an_error(served: Served) -> None:
    port = int(served.endpoint.address.rpartition(":")[2])
    with pytest.raises(OSError):
        _ = Endpoint(port=port).address


def test_a_body_without_end_is_refused_in_bounded_memory(model: ModelWrapper) -> None:
    """A gigabyte is not read, whether it is announced or not."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {model.api_key}\r\n".encode()
    )
    before = psutil.Process(os.getpid()).memory_info().rss
    announced = raw(model, head + b"Content-Length: 1000000000\r\n\r\n")
    assert announced.startswith(b"HTTP/1.1 413")
    assert raw(model, head + b"Content-Length: 9999999999999999999999\r\n\r\n").startswith(b"HTTP/1.1 4")
    piece = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
    host, _, port = model.api_address.removeprefix("http://").partition(":")
    sent = 0
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(1000):
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
    assert sent < 100_000_000, "the server ends the connection"
    assert psutil.Process(os.getpid()).memory_info().rss - before < 200_000_000


def test_a_request_that_does_not_arrive_is_ended(model: ModelWrapper) -> None:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {model.api_key}\r\n".encode()
    )
    started = time.monotonic()
    slow = raw(model, head + b"Content-Length: 100\r\n\r\n", b"{", b'"', pause_s=0.2)
    assert slow.startswith(b"HTTP/1.1 408") and b"request_timeout" in slow
    assert raw(model, b"GET /health HTTP/1.1\r\n", *[b"X-A: b\r\n"] * 20, pause_s=0.1) == b""
    assert raw(model) == b""
    assert time.monotonic() - started < 15
    assert httpx.get(f"{model.api_address}/health", trust_env=False).status_code == 200


def test_connections_that_say_nothing_do_not_keep_others_from_their_answers(model: ModelWrapper) -> None:
    host, _, port = model.api_address.removeprefix("http://").partition(":")
    silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(100)]
    try:
        assert ask(model, "/v1/chat/completions", Authorization=f"Bearer {model.api_key}").status_code == 200
        time.sleep(3.0)
        assert all(connection.recv(1) == b"" for connection in silent), "they are ended"
    finally:
        for connection in silent:
            connection.close()


def test_many_headers_are_refused(model: ModelWrapper) -> None:
    lines = b"".join(f"X-{number}: a\r\n".encode() for number in range(10_000))
    said = raw(model, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n")
    assert said.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    few = {f"X-{number}": "a" for number in range(200)}
    assert httpx.get(f"{model.api_address}/health", headers=few, trust_env=False).status_code == 431


HOSTILE: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "1\ud800"}]},
    {"messages": [{"role": "user", "content": "\x00\u202e" * 9}]},
    {"messages": [{"role": "{{ ''.__class__ }}", "content": "{{ 7 * 7 }}"}]},
    {
        "messages": [
            {"role": "user", "content": "1", "tool_calls": [{"function": {"name": "a", "arguments": "{" * 900}}]}
        ]
    },
    {"messages": MESSAGES, "temperature": 1e308},
    {"messages": MESSAGES, "temperature": 1e-300},
    {"messages": MESSAGES, "top_p": 1e-300},
    {"messages": MESSAGES, "top_k": 10**30},
    {"messages": MESSAGES, "seed": 10**300},
    {"messages": MESSAGES, "seed": -1},
    {"messages": MESSAGES, "min_tokens": 10**18},
    {"messages": MESSAGES, "min_tokens": 60, "max_tokens": 2},
    {"messages": MESSAGES, "n": 10**9},
    {"messages": MESSAGES, "stop": ["\ufffd", "\x00"]},
    {"messages": MESSAGES, "stop": ["a" * 10**4]},
    {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "a", "parameters": {"$ref": "#"}}}]},
    {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "a", "parameters": 5}}]},
    {"messages": [[]]},
    {"messages": {"role": "user"}},
]
PROMPTS: list[Any] = [[], "", [-1], [10**6], [2**70], [""], [[1, 2]], ["1"] * 2000, [True], [1.5], {"a": 1}]


def test_hostile_values_neither_fail_nor_harm_the_engine(model: ModelWrapper) -> None:
    headers = {"Authorization": f"Bearer {model.api_key}", "Content-Type": "application/json"}
    with httpx.Client(trust_env=False, timeout=60, headers=headers, base_url=model.api_address) as client:
        bodies = [("/v1/chat/completions", {"max_tokens": 2} | body) for body in HOSTILE]
        bodies += [("/v1/completions", {"prompt": prompt, "max_tokens": 2}) for prompt in PROMPTS]
        for path, body in bodies:
            answer = client.post(path, content=json.dumps(body).encode())
            assert answer.status_code in (200, 400), (body, answer.text)
            assert body.get("prompt") not in ([], "") or answer.status_code == 400, "a prompt has a token"
            assert "Traceback" not in answer.text and "site-packages" not in answer.text
            fine = client.post("/v1/completions", json={"prompt": "1+1=", "max_tokens": 2})
            assert fine.status_code == 200, f"the engine is well after {body}"
        for content in (
            b"NaN",
            b'{"messages": NaN}',
            b'{"prompt": "1", "temperature": Infinity}',
            b"9" * 5000,
            b"\x00",
        ):
            assert client.post("/v1/completions", content=content).status_code == 400
        deep = b'{"messages": [{"role": "user", "content": ' + b"[" * 30_000 + b"]" * 30_000 + b"}]}"
        assert client.post("/v1/chat/completions", content=deep).status_code == 400


def test_an_answer_that_takes_too_long_is_a_504_and_leaves_no_record(tmp_path: Path) -> None:
    late = Served(tmp_path, limits=EndpointLimits(timeout_s=0.3))
    try:
        loop = late.engine._loaded[1]  # type: ignore[attr-defined]
        step = loop.batch.step
        loop.batch.step = lambda: (time.sleep(0.1), step())
        model = late.rollout()
        body = {"messages": MESSAGES, "max_tokens": 40, "ignore_eos": True}
        answer = httpx.post(
            f"{model.api_address}/v1/chat/completions", json=body, trust_env=False, timeout=20,
            headers={"Authorization": f"Bearer {model.api_key}"},
        )  # fmt: skip
        assert answer.status_code == 504 and answer.json()["error"]["type"] == "timeout_error"
        time.sleep(0.5)
        assert model.history == [] and loop.batch.num_active == 0
    finally:
        late.close()


def test_a_client_that_does_not_read_its_stream_is_one_that_has_gone(tmp_path: Path) -> None:
    """What it is sent does not fit into the buffers of the connection."""
    own = Served(tmp_path, limits=EndpointLimits(requests=1, receive_s=0.5))
    try:
        model = own.rollout()
        body = {"messages": MESSAGES, "n": 1024, "max_tokens": 50, "ignore_eos": True, "logprobs": True, "stream": True}
        content = json.dumps(body | {"top_logprobs": 20}).encode()
        host, _, port = model.api_address.removeprefix("http://").partition(":")
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {model.api_key}\r\n"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            headers = {"Authorization": f"Bearer {model.api_key}"}
            waited = time.monotonic()
            while (text := ask(model, "/metrics", **headers).text) and time.monotonic() - waited < 60:
                if "trinity_cancelled_requests_total 1.0" in text and "trinity_requests_under_way 0.0" in text:
                    break
                time.sleep(0.1)
            assert "trinity_cancelled_requests_total 1.0" in text and "trinity_requests_under_way 0.0" in text
        assert ask(model, "/v1/completions", **headers).status_code == 200, "its place is free"
    finally:
        own.close()


def test_a_connection_is_kept_for_longer_than_clients_use_it_again(tmp_path: Path) -> None:
    """The libraries of clients keep one for five seconds: ended at that moment, their next request would fail."""
    own = Served(tmp_path)
    try:
        host, _, port = own.rollout().api_address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            for _ in range(2):
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
                time.sleep(6)
    finally:
        own.close()


def test_counts_are_those_of_what_was_asked(tmp_path: Path) -> None:
    own = Served(tmp_path, limits=EndpointLimits(requests=2))
    try:
        model = own.rollout()
        loop = own.engine._loaded[1]  # type: ignore[attr-defined]
        step, may_go = loop.batch.step, threading.Event()
        loop.batch.step = lambda: (may_go.wait(20), step())
        headers = {"Authorization": f"Bearer {model.api_key}"}
        found: list[httpx.Response] = []
        threads = [
            threading.Thread(target=lambda: found.append(ask(model, "/v1/completions", **headers))) for _ in "12"
        ]
        for thread in threads:
            thread.start()
        gate = time.monotonic() + 10
        while (
            "trinity_requests_under_way 2.0" not in ask(model, "/metrics", **headers).text and time.monotonic() < gate
        ):
            time.sleep(0.05)
        busy = ask(model, "/v1/completions", **headers)
        assert (busy.status_code, busy.headers["retry-after"], busy.json()["error"]["code"]) == (429, "1", "overloaded")
        may_go.set()
        for thread in threads:
            thread.join()
        text = ask(model, "/metrics", **headers).text
        assert [answer.status_code for answer in found] == [200, 200] and len(model.history) == 2
        assert 'trinity_requests_total{route="/v1/completions",status="200"} 2.0' in text
        assert "trinity_refused_requests_total 1.0" in text and "trinity_requests_under_way 0.0" in text
        sampled = sum(len(exp.tokens) - exp.prompt_length for exp in model.history)
        assert f"trinity_response_tokens_total {float(sampled)}" in text
    finally:
        own.close()
