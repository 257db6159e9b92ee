"""Streams: parts that come while tokens are sampled, and together are the whole answer, whatever it is."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.common.models.families import FAMILIES
from tests.explorer.api.test_conversations import USER, Rollouts
from tests.explorer.api.test_endpoint import MESSAGES, Served
from trinity.common.models.model import ModelWrapper

LONG = {"max_tokens": 40, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.close()


@pytest.fixture(params=FAMILIES, scope="module")
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollouts]:
    rollouts = Rollouts(tmp_path_factory.mktemp(request.param), request.param)
    yield rollouts
    rollouts.close()


def _ids(model: ModelWrapper) -> list[list[int]]:
    return [exp.tokens.tolist() for exp in model.history]


class Gathered:
    """What a stream gave, put together."""

    def __init__(self, stream: Any) -> None:
        self.texts, self.logprobs, self.ids = dict[int, str](), dict[int, list[float]](), dict[int, list[int]]()
        self.ends, self.heads, self.count = dict[int, str](), set[str](), 0
        for chunk in stream:
            self.heads.add(chunk.id)
            for choice in chunk.choices:
                self._take(choice)

    def _take(self, choice: Any) -> None:
        text = choice.delta.content if hasattr(choice, "delta") else choice.text
        self.count += bool(text)
        assert not (text or "").endswith("\ufffd") or choice.finish_reason is None
        self.texts[choice.index] = self.texts.get(choice.index, "") + (text or "")
        rows = choice.logprobs
        if rows is not None:
            values = [row.logprob for row in rows.content] if hasattr(rows, "content") else rows.token_logprobs
            self.logprobs.setdefault(choice.index, []).extend(values)
        self.ids.setdefault(choice.index, []).extend(getattr(choice, "token_ids", None) or [])
        if choice.finish_reason:
            self.ends[choice.index] = choice.finish_reason


@pytest.mark.parametrize(
    "options",
    [
        {}, {"n": 3}, {"max_tokens": 3}, {"stop": ["e", "a"]},
        {"stop": ["the ", "数", "un"], "extra_body": {"min_tokens": 9}},
    ],
    ids=["one", "three", "cut", "stopped", "stopped-late"],
)  # fmt: skip
def test_parts_are_the_whole_in_every_family(family: Rollouts, options: dict[str, Any]) -> None:
    plain, other = family.rollout(), family.rollout()
    with plain.get_openai_client() as client:
        whole = client.chat.completions.create(model="model", messages=USER, logprobs=True, **options)
    with other.get_openai_client() as client:
        body = options.get("extra_body", {}) | {"return_token_ids": True}
        asked = options | {"extra_body": body, "stream": True, "logprobs": True}
        found = Gathered(client.chat.completions.create(model="model", messages=USER, **asked))
    assert _ids(plain) == _ids(other) and len(found.heads) == 1
    for choice, exp in zip(whole.choices, other.history, strict=True):
        assert found.texts[choice.index] == choice.message.content == exp.response_text
        assert found.ends[choice.index] == choice.finish_reason
        assert found.logprobs[choice.index] == [row.logprob for row in choice.logprobs.content] == exp.logprobs.tolist()
        assert found.ids[choice.index] == exp.tokens[exp.prompt_length :].tolist()


def test_a_stream_of_texts(served: Served) -> None:
    plain, other = served.rollout(), served.rollout()
    expected = plain.generate(["1+1=", "2+2="], n=2, max_tokens=9)
    with other.get_openai_client() as client:
        asked = {"n": 2, "max_tokens": 9, "logprobs": 0, "stream": True}
        found = Gathered(client.completions.create(model="model", prompt=["1+1=", "2+2="], **asked))
    assert [found.texts[number] for number in range(4)] == [exp.response_text for exp in expected]
    assert [found.logprobs[number] for number in range(4)] == [exp.logprobs.tolist() for exp in expected]
    assert _ids(plain) == _ids(other)


def test_parts_come_while_the_engine_samples(served: Served) -> None:
    """The engine continues after 20 tokens only when the client has had a part."""
    model = served.rollout()
    loop = served.engine._loaded[1]  # type: ignore[attr-defined]
    step, has_part, waited = loop.batch.step, threading.Event(), list[bool]()

    def stepping() -> None:
        waited.append(len(waited) < 20 or has_part.wait(timeout=20))
        step()

    loop.batch.step = stepping
    try:
        with model.get_openai_client() as client:
            for chunk in client.chat.completions.create(model="model", messages=MESSAGES, stream=True, **LONG):
                if chunk.choices and chunk.choices[0].delta.content:
                    has_part.set()
    finally:
        loop.batch.step = step
    assert all(waited) and len(waited) > 30
    assert len(model.history) == 1


@pytest.mark.parametrize("is_held", [False, True])
def test_a_client_that_goes_cancels_its_call_and_leaves_no_record(served: Served, is_held: bool) -> None:
    """Also while tokens come of which nothing may be shown yet."""
    model = served.rollout()
    loop = served.engine._loaded[1]  # type: ignore[attr-defined]
    step = loop.batch.step
    loop.batch.step = lambda: (time.sleep(0.05), step())
    body = {"messages": MESSAGES, "max_tokens": 60 if is_held else 40, "ignore_eos": True}
    if is_held:
        body |= {"stop": ["z" * 90], "stream": True}
    try:
        for is_stream in (True, False):
            headers = {"Authorization": f"Bearer {model.api_key}"}
            url = f"{model.api_address}/v1/chat/completions"
            with httpx.Client(trust_env=False, timeout=0.4, headers=headers) as client:
                if is_stream and not is_held:
                    with client.stream("POST", url, json=body | {"stream": True}) as answer:
                        assert next(answer.iter_lines()).startswith("data: ")
                else:
                    with pytest.raises(httpx.ReadTimeout):
                        client.post(url, json=body)
            waited = time.monotonic()
            while loop.batch.num_active and time.monotonic() - waited < 1.5:
                time.sleep(0.01)
            assert loop.batch.num_active == 0, "the slot is free before the answer is complete"
    finally:
        loop.batch.step = step
    time.sleep(0.6)
    assert model.history == []
    model.chat(MESSAGES, max_tokens=2)
    assert len(model.history) == 1


def test_what_fails_before_the_first_part_has_a_status(served: Served) -> None:
    model = served.rollout()
    headers = {"Authorization": f"Bearer {model.api_key}"}
    body = {"messages": [{"role": "user", "content": "1" * 100}], "stream": True}
    url = f"{model.api_address}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=headers, trust_env=False)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    assert model.history == []


def test_events_are_those_of_the_interface(served: Served, tmp_path: Path) -> None:
    model = served.rollout()
    headers = {"Authorization": f"Bearer {model.api_key}"}
    body = {"messages": MESSAGES, "stream": True, "max_tokens": 4, "stream_options": {"include_usage": True}}
    answer = httpx.post(f"{model.api_address}/v1/chat/completions", json=body, headers=headers, trust_env=False)
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk.get("choices") for chunk in chunks][-1] == []
    (exp,) = model.history
    assert chunks[-1]["usage"] == {
        "prompt_tokens": exp.prompt_length,
        "completion_tokens": len(exp.tokens) - exp.prompt_length,
        "total_tokens": len(exp.tokens),
    }
