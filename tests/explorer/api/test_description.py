"""The OpenAPI description: whatever is asked by it, no answer is a failure of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.explorer.api.test_endpoint import MESSAGES, Served
from trinity.common.models.model import ModelWrapper

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
EXAMPLES = 40  # of each route and mode


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(served: Served) -> ModelWrapper:
    return served.rollout()


def description(model: ModelWrapper) -> dict[str, Any]:
    found = httpx.get(f"{model.api_address}/openapi.json", trust_env=False)
    assert found.status_code == 200
    return found.json()


def test_every_route_is_described_with_its_body_and_its_errors(model: ModelWrapper) -> None:
    paths = description(model)["paths"]
    assert {*ROUTES, "/health", "/metrics", "/v1/models"} <= paths.keys()
    for route in ROUTES:
        said = paths[route]["post"]
        schema = said["requestBody"]["content"]["application/json"]["schema"]
        assert schema["additionalProperties"] is False and schema["required"]
        assert {"400", "401", "413", "429", "504"} <= said["responses"].keys()
    assert "$ref" not in json.dumps(paths)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize("route", ROUTES)
def test_no_request_makes_the_server_fail(
    served: Served, model: ModelWrapper, route: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(description(model))
    operation = schema[route]["POST"]
    headers = {"Authorization": f"Bearer {model.api_key}"}
    statuses: dict[int, int] = {}
    client = httpx.Client(base_url=model.api_address, headers=headers, trust_env=False, timeout=60)

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        body = case.body if isinstance(case.body, dict | list | str | int | float | bool | None) else None
        content = json.dumps(body).encode("utf-8", "surrogatepass")
        answer = client.post(route, content=content, headers={"Content-Type": "application/json"})
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, (answer.status_code, answer.text, content)
        assert "Traceback" not in answer.text

    with client:
        ask()
        after = client.post(ROUTES[0], json={"messages": MESSAGES, "max_tokens": 2})
    assert after.status_code == 200, "the engine still answers"
    assert sum(statuses.values()) >= EXAMPLES // 2
    assert (200 if mode is GenerationMode.POSITIVE else 400) in statuses
