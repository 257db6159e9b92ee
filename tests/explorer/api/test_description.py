"""The OpenAPI descriptions: whatever is asked by them, no answer is a failure of the server (X09)."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.explorer.api.test_endpoint import MESSAGES, Served
from tests.explorer.proxy.in_process import KEY, Service
from trinity.common.models.model import ModelWrapper
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.api.engine_calls import METHODS
from trinity.explorer.api.engines import engine_routes

ASKED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
OF_ALL = (*ASKED, "/v1/models", "/metrics", "/health")
OF_SERVE = ("/feedback", "/commit", "/status")
OF_ENGINES = tuple(f"/engines/{{index}}/{method}" for method in METHODS)
ROUTES = [("workflows", route) for route in OF_ALL] + [("serve", route) for route in (*OF_ALL, *OF_SERVE)]
ROUTES += [("engines", route) for route in OF_ENGINES]  # of `trinity debug`, whose others are those of workflows
EXAMPLES = 25  # of each route and mode
SHORT = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4, "n": 2}
PROMPTS: dict[str, dict[str, Any]] = {  # texts that the model reads, as each route takes them
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "12+34="},
    "/v1/responses": {"input": "12+34=", "instructions": None},
    "/v1/messages": {"messages": MESSAGES, "system": "Add."},
}
ARGUMENTS: dict[str, dict[str, Any]] = {  # that an engine takes
    "generate": {"prompt": "12+34="},
    "chat": {"messages": MESSAGES},
    "logprobs": {"tokens": [4, 5, 6]},
    "convert_messages_to_experience": {"messages": [*MESSAGES, {"role": "assistant", "content": "46"}]},
    "get_message_token_len": {"messages": MESSAGES},
}
WITHOUT_ARGUMENTS = ("/vocabulary", "/stats")
RARE = ("sample_ids", "template_args", "tools")  # with any value, most calls are refused


class Server(NamedTuple):
    """A server, its key, and a name of its model."""

    address: str
    key: str
    ask: Callable[[], str]
    key_of_model: str = ""

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.address, headers=headers, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def workflows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Served(tmp_path_factory.mktemp("served"))
    model = made.rollout()
    yield Server(model.api_address, model.api_key, lambda: "")
    made.close()


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Service(tmp_path_factory.mktemp("service") / "run")
    yield Server(made.address, KEY, lambda: made.ask(made.client()).id)
    made.close()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Served(tmp_path_factory.mktemp("engines"))
    running = threading.Thread(target=made.loop.run_forever, daemon=True)
    running.start()
    endpoint = Endpoint(extend=engine_routes([made.engine], KEY, made.loop))
    model = ModelWrapper(made.engine, config=made.config, clients=endpoint)
    yield Server(model.api_address, KEY, lambda: "", model.api_key)
    endpoint.close()
    made.loop.call_soon_threadsafe(made.loop.stop)
    running.join(10)
    made.close()


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: str) -> Server:
    found = request.getfixturevalue(kind)
    assert isinstance(found, Server)
    return found


def description(server: Server) -> dict[str, Any]:
    found = httpx.get(f"{server.address}/openapi.json", trust_env=False)
    assert found.status_code == 200
    return found.json()


@pytest.mark.parametrize("kind", ["workflows", "serve", "engines"])
def test_every_route_is_described_with_its_body_and_its_errors(server: Server, kind: str) -> None:
    paths = description(server)["paths"]
    asked = {route for owner, route in ROUTES if owner == kind}
    assert paths.keys() == asked | set(OF_ALL), "each is asked below"
    for route in ASKED:
        said = paths[route]["post"]
        schema = said["requestBody"]["content"]["application/json"]["schema"]
        assert schema["additionalProperties"] is False and schema["required"]
        assert {"400", "401", "413", "429", "504"} <= said["responses"].keys()
    assert "$ref" not in json.dumps({route: paths[route] for route in (*ASKED, *(asked & set(OF_ENGINES)))})
    if kind == "serve":
        said = paths["/feedback"]["post"]
        assert said["requestBody"]["content"]["application/json"]["schema"]["required"] == ["reward"]
        assert {"401", "403", "408", "409", "413", "422", "503"} <= said["responses"].keys()


@pytest.mark.parametrize("route", ASKED)
def test_numbers_have_the_same_bounds_on_every_route(workflows: Server, route: str) -> None:
    """Those of chat completions, also where a message or a response is asked for; and what is said holds."""
    paths = description(workflows)["paths"]
    bodies = {name: paths[name]["post"]["requestBody"]["content"]["application/json"]["schema"] for name in ASKED}
    said, of_chat = bodies[route]["properties"], bodies[ASKED[0]]["properties"]
    shared = said.keys() & {"temperature", "top_p", "top_k"}
    assert shared >= {"temperature", "top_p"}
    assert all(said[name]["anyOf"] == of_chat[name]["anyOf"] for name in shared)
    assert {"type": "number", "minimum": 0} in said["temperature"]["anyOf"]
    wrong = {"temperature": (-0.5, 1e-9), "top_p": (0, 1.5), "top_k": (-2, 2**31)}
    with workflows.client() as client:
        for name, value in [(number, value) for number in sorted(shared) for value in wrong[number]]:
            asked = {"max_tokens": 2} if route == "/v1/messages" else {}
            answer = client.post(route, json=PROMPTS[route] | asked | {name: value})
            assert answer.status_code == 400 and name in answer.json()["error"]["message"], answer.text


def readable(body: dict[str, Any], server: Server, route: str) -> dict[str, Any]:
    """Return a body that asks with a prompt of the model, or judges an answer that there is."""
    if route == "/feedback":
        return {"reward": body["reward"], "msg_ids": [server.ask()]}
    if route in OF_ENGINES:
        given = {name: value for name, value in body["kwargs"].items() if name not in RARE}
        return {"args": [], "kwargs": given | ARGUMENTS.get(route.rpartition("/")[2], {})}
    return body | PROMPTS.get(route, {})


def body_of(case: Any, server: Server, route: str) -> Any:
    """Return a body, without what would be refused of each or take long: another model, and long responses."""
    body = case.body if isinstance(case.body, dict | list | str | int | float | bool | None) else None
    if isinstance(body, dict) and route in ASKED:
        body = {name: value for name, value in body.items() if name != "model" or not isinstance(value, str)}
        body |= {name: min(body[name], most) for name, most in SHORT.items() if type(body.get(name)) is int}
    elif isinstance(body, dict) and route in OF_ENGINES and isinstance(body.get("kwargs"), dict):
        short = {name: min(body["kwargs"][name], most) for name, most in SHORT.items() if name in body["kwargs"]
                 and type(body["kwargs"][name]) is int}  # fmt: skip
        body = body | {"kwargs": body["kwargs"] | short}
    elif isinstance(body, dict) and isinstance(body.get("msg_ids"), list) and len(body["msg_ids"]) > 1:
        body = body | {"msg_ids": [server.ask()]}
    return body


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize(("kind", "route"), ROUTES)
def test_no_request_makes_the_server_fail(server: Server, kind: str, route: str, mode: GenerationMode) -> None:
    (method,) = description(server)["paths"][route]
    operation = schemathesis.openapi.from_dict(description(server))[route][method.upper()]
    has_body = bool(operation.body)
    is_right, statuses = mode is GenerationMode.POSITIVE, Counter[int]()
    client, is_readable = server.client(), cycle([False, is_right])

    @given(case=operation.as_strategy(generation_mode=mode if has_body else GenerationMode.POSITIVE))
    @settings(
        max_examples=EXAMPLES if has_body else 3,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    def ask(case: Any) -> None:
        body = body_of(case, server, route)
        if isinstance(body, dict) and next(is_readable):  # of the others, most are refused for their prompt
            body = readable(body, server, route)
        content = json.dumps(body).encode("utf-8", "surrogatepass") if has_body else b""
        if not has_body and not is_right:
            content = b"[" * 1000  # a body that the route does not read
        headers = {"Content-Type": "application/json"}
        answer = client.request(method.upper(), route.replace("{index}", "0"), content=content, headers=headers)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (answer.status_code, answer.text, content)
        assert "Traceback" not in answer.text and "site-packages" not in answer.text and ".py:" not in answer.text

    with client:
        ask()
        own = {"Authorization": f"Bearer {server.key_of_model or server.key}"}
        after = client.post(ASKED[0], json={"messages": MESSAGES, "max_tokens": 2}, headers=own)
    assert after.status_code == 200, "the engine still answers"
    has_one_body = is_right and route.endswith(WITHOUT_ARGUMENTS)
    assert sum(statuses.values()) >= (EXAMPLES // 2 if has_body and not has_one_body else 1)
    assert (200 if is_right or not has_body else 422 if route == "/feedback" else 400) in statuses, statuses
