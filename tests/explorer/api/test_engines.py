"""The routes by which distant workflows ask engines, with bodies that nobody should send (X09)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.explorer.api.test_endpoint import MESSAGES, Served
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.api.engines import engine_routes
from trinity.explorer.isolation.wire import call_bytes, result_of

KEY = "key-of-the-engines"


class Engines:
    """An engine behind its routes."""

    def __init__(self, folder: Path) -> None:
        self.served = Served(folder)
        self.thread = threading.Thread(target=self.served.loop.run_forever, daemon=True)
        self.thread.start()
        self.endpoint = Endpoint(extend=engine_routes([self.served.engine], KEY, self.served.loop))
        self.address = self.endpoint.address

    def post(self, path: str, body: bytes, key: str = KEY) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{self.address}/engines/{path}", content=body, headers=headers, trust_env=False, timeout=60)

    def close(self) -> None:
        self.endpoint.close()
        self.served.loop.call_soon_threadsafe(self.served.loop.stop)
        self.thread.join(10)
        self.served.close()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    made = Engines(tmp_path_factory.mktemp("engines"))
    yield made
    made.close()


NOTHING: list[Any] = []
WRONG: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("generate", [], {}),
    ("generate", [1], {}),
    ("generate", ["1="], {"prompt": "1="}),
    ("generate", ["1=", 2], {}),
    ("generate", [[10**6]], {}),
    ("generate", [[2**70]], {}),
    ("generate", ["1="], {"n": 10**9}),
    ("generate", ["1="], {"n": True}),
    ("generate", ["1="], {"stop": [1]}),
    ("generate", ["1="], {"stop": [[]]}),
    ("generate", ["1="], {"seed": "a"}),
    ("generate", ["1="], {"sample_ids": ["a", "b"]}),
    ("generate", ["1="], {"participant": []}),
    ("generate", ["1="], {"temperature": 1e-300}),
    ("generate", ["1="], {"temperature": float("nan")}),
    ("generate", ["1="], {"top_k": 1.5}),
    ("generate", ["1="], {"min_tokens": "a"}),
    ("generate", ["1="], {"unknown": 1}),
    ("generate", ["1=" * 100], {"enable_prompt_truncation": False}),
    ("chat", [5], {}),
    ("chat", [NOTHING], {}),
    ("chat", [[5]], {}),
    ("chat", [[{"content": "1="}]], {}),
    ("chat", [[{"role": "user", "content": 5}]], {}),
    ("chat", [[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]}]], {}),
    ("chat", [MESSAGES], {"tools": [5]}),
    ("chat", [MESSAGES], {"template_args": {"chat_template": "{{ 1 / 0 }}"}}),
    ("chat", [MESSAGES], {"template_args": {"chat_template": "{%"}}),
    ("chat", [MESSAGES], {"template_args": {"other": 1}}),
    ("chat", [MESSAGES], {"said": [1, [4, 10**6], 1]}),
    ("logprobs", [[5]], {}),
    ("logprobs", [[5, 10**6]], {}),
    ("logprobs", [[5, -1]], {}),
    ("logprobs", [[5, 6]], {"temperature": 0}),
    ("logprobs", ["ab"], {}),
    ("convert_messages_to_experience", [MESSAGES], {}),
    ("convert_messages_to_experience", [5], {}),
    ("get_message_token_len", [5], {}),
    ("get_message_token_len", [MESSAGES, 5], {}),
    ("stats", [1], {}),
    ("vocabulary", [], {"a": 1}),
    ("join_round", [], {}),
    ("join_round", [[]], {}),
]
BODIES = [b"", b"{", b"[]", b"5", b'{"args":[],"kwargs":[1]}', b'{"args":{}}', b'{"args":[],"kwargs":{"said":5}}',
          b'{"args":[],"kwargs":{"said":[1,2,3,4,5,6,7,8,9]}}', b'{"args":["\\ud800"]}', b"\xff",
          b'{"args":' + b"[" * 100_000 + b"}"]  # fmt: skip


def test_a_call_that_an_engine_cannot_take_is_a_400_and_the_engine_goes_on(engines: Engines) -> None:
    cases = [(method, json.dumps({"args": args, "kwargs": kwargs}).encode()) for method, args, kwargs in WRONG]
    cases += [(method, body) for body in BODIES for method in ("stats", "generate")]
    for method, body in cases:
        answer = engines.post(f"0/{method}", body)
        assert answer.status_code == 400, (method, body[:200], answer.text)
        failure = answer.json()["failure"]
        assert failure["message"] and "place" not in failure, (method, body[:200])
        assert ".py" not in answer.text and "/trinity/" not in answer.text and "Traceback" not in answer.text
        fine = engines.post("0/generate", call_bytes(["1+1="], {"max_tokens": 2}))
        assert fine.status_code == 200 and len(result_of(fine.content)[1]) == 1, (method, body[:200])


def test_an_unknown_engine_or_method_is_a_404_and_a_wrong_key_a_401(engines: Engines) -> None:
    body = call_bytes([], {})
    for path in ("1/stats", "-1/stats", "x/stats", "00/stats", f"{'9' * 5000}/stats", "0/update_weights",
                 "0/__class__", "0/shutdown", "0/pull", "0/"):  # fmt: skip
        assert engines.post(path, body).status_code == 404, path
    for key in ("x", "wrong", KEY[:-1]):
        assert engines.post("0/stats", body, key).status_code == 401
    assert engines.post("0/stats", body).status_code == 200


def test_an_engine_that_fails_is_a_503_without_a_place(tmp_path: Path) -> None:
    made = Engines(tmp_path)
    try:

        def fail() -> None:
            raise RuntimeError("device lost")

        made.served.engine._loaded[1].batch.step = fail  # type: ignore[attr-defined]
        for _ in range(2):
            answer = made.post("0/generate", call_bytes(["1="], {"max_tokens": 3, "ignore_eos": True}))
            failure = answer.json()["failure"]
            assert (answer.status_code, failure["code"]) == (503, "E5601") and ".py" not in answer.text
    finally:
        made.close()
