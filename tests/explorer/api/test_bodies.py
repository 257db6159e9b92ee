"""Requests that do not arrive, or are too large, at every route of every server that is made of the endpoint (X10)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import httpx
import pytest

from tests.explorer.api.test_endpoint import Served
from tests.explorer.proxy.in_process import KEY, Service
from trinity.common.models.model import ModelWrapper
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.api.engines import engine_routes
from trinity.explorer.api.limits import EndpointLimits
from trinity.explorer.proxy.routes import proxy_routes

LIMITS = EndpointLimits(body_bytes=100_000, receive_s=1.0)
KEY_OF_ENGINES = "key-of-the-engines"
WITHOUT_BODY = "/commit"
PLACE = {"{index}": "0", "{method}": "stats"}


class Server(NamedTuple):
    """A server, and the key of each of its routes."""

    address: str
    key: str
    key_of_engines: str = ""


@pytest.fixture(scope="module")
def of_workflows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The endpoint of workflows, with the routes of engines as `trinity debug` adds them."""
    made = Served(tmp_path_factory.mktemp("served"))
    endpoint = Endpoint(limits=LIMITS, extend=engine_routes([made.engine], KEY_OF_ENGINES, made.loop))
    model = ModelWrapper(made.engine, config=made.config, clients=endpoint)
    yield Server(model.api_address, model.api_key, KEY_OF_ENGINES)
    endpoint.close()
    made.close()


@pytest.fixture(scope="module")
def of_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Mode serve, at another address with short limits."""
    made = Service(tmp_path_factory.mktemp("service") / "run")
    service = made.side.service
    endpoint = Endpoint(limits=LIMITS, extend=proxy_routes(service, made.loop), model_of=service.models.model_of)
    yield Server(endpoint.address, KEY)
    endpoint.close()
    made.close()


def posts(server: Server) -> dict[str, str]:
    """Return the routes of a server that are posted to, each with its key."""
    paths = httpx.get(f"{server.address}/openapi.json", trust_env=False).json()["paths"]
    found = {}
    for path in (path for path, methods in paths.items() if "post" in methods):
        key = server.key_of_engines if path.startswith("/engines") else server.key
        for name, value in PLACE.items():
            path = path.replace(name, value)
        found[path] = key
    return found


def begun(server: Server, path: str, key: str, length: int) -> tuple[bytes, float]:
    """Return what is said to the head of a request and one byte of its body, and after how many seconds it ends."""
    host, _, port = server.address.removeprefix("http://").partition(":")
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
    found, started = b"", time.monotonic()
    with socket.create_connection((host, int(port)), timeout=10) as connection, suppress(ConnectionError, TimeoutError):
        connection.sendall(head.encode() + b"{")
        while part := connection.recv(65536):
            found += part
    return found, time.monotonic() - started


@pytest.mark.parametrize("name", ["of_workflows", "of_serve"])
def test_a_body_that_does_not_arrive_or_is_too_large_is_refused_at_every_route(
    name: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(name)
    routes = posts(server)
    own = {"of_workflows": "/engines/0/stats", "of_serve": "/feedback"}[name]
    assert {"/v1/chat/completions", own} <= routes.keys()
    for path, key in routes.items():
        if path == WITHOUT_BODY:
            continue
        said, seconds = begun(server, path, key, 100)
        assert said.startswith(b"HTTP/1.1 408") and seconds < 5, (path, said)
        said, seconds = begun(server, path, key, 10**9)
        assert said.startswith(b"HTTP/1.1 413") and seconds < 5, (path, said)
    assert httpx.get(f"{server.address}/health", trust_env=False).status_code == 200


def test_a_route_without_a_body_does_not_wait_for_one(of_serve: Server) -> None:
    said, seconds = begun(of_serve, WITHOUT_BODY, KEY, 100)
    assert said.startswith(b"HTTP/1.1 200") and seconds < 5
