"""The endpoint with the clients that people use: the same tokens as by the wrapper, and errors that say what to do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.resolved import resolved
from tests.tiny import CHARACTERS, tiny_model
from trinity.common.models import create_inference_model
from trinity.common.models.model import ModelWrapper
from trinity.explorer.api.app import EndpointLimits
from trinity.explorer.api.endpoint import Endpoint

MESSAGES = [{"role": "user", "content": "12+34="}]


def llama(folder: Path) -> None:
    tiny_model(folder, "llama", seed=3, scale=3.0)


class Served:
    """An engine with its wrapper and its endpoint, on an event loop of its own."""

    def __init__(
        self,
        folder: Path,
        limits: EndpointLimits | None = None,
        *,
        make: Callable[[Path], Any] = llama,
        model: dict[str, Any] | None = None,
        **rollout: Any,
    ) -> None:
        make(folder / "model")
        rollout = {"dtype": "float32", "enable_openai_api": True, **rollout}
        # The shortest response of the wrapper is then that of the endpoint, so that both sample the same tokens.
        lengths = model or {"max_model_len": 64, "max_response_tokens": 8, "min_response_tokens": 0}
        self.config = resolved({
            "model": {"model_path": str(folder / "model"), **lengths},
            "explorer": {"rollout_model": rollout, "max_timeout": 60},
            "algorithm": {"repeat_times": 2},
        })  # fmt: skip
        self.endpoint = Endpoint(limits=limits)
        self.loop = asyncio.new_event_loop()
        self.wrapper = self.on_loop(self._made())

    async def _made(self) -> ModelWrapper:
        self.engine = create_inference_model(self.config)
        await self.engine.prepare()
        return ModelWrapper(self.engine, config=self.config, clients=self.endpoint, enable_history=True)

    def on_loop(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def rollout(self, task: int = 0) -> ModelWrapper:
        """Return the model of a rollout; equal numbers give equal samples."""
        model = self.wrapper.for_run(1, task)
        model._loop = None  # a thread of its own serves what it is asked
        return model

    def close(self) -> None:
        self.endpoint.close()
        self.on_loop(self.engine.shutdown())
        self.loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.close()


def _ids(model: ModelWrapper) -> list[list[int]]:
    return [exp.tokens.tolist() for exp in model.history]


def test_a_client_gives_the_tokens_of_the_wrapper_and_the_history_holds_them(served: Served) -> None:
    plain, other = served.rollout(), served.rollout()
    first = plain.chat(MESSAGES, n=2, max_tokens=6, temperature=1.0)
    client = other.get_openai_client()
    answer = client.chat.completions.create(
        model=client.model_path, messages=MESSAGES, n=2, max_tokens=6, temperature=1.0, logprobs=True,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    assert [choice.message.content for choice in answer.choices] == [exp.response_text for exp in first]
    assert _ids(other) == _ids(plain) and len(other.history) == 2
    for choice, exp in zip(answer.choices, first, strict=True):
        assert choice.token_ids == exp.tokens[exp.prompt_length :].tolist()
        assert [row.logprob for row in choice.logprobs.content] == pytest.approx(exp.logprobs.tolist())
        assert choice.finish_reason == exp.info["finish_reason"]
    assert answer.prompt_token_ids == first[0].tokens[: first[0].prompt_length].tolist()
    assert answer.usage.prompt_tokens == first[0].prompt_length
    assert answer.usage.completion_tokens == sum(len(exp.tokens) - exp.prompt_length for exp in first)


def test_every_turn_of_a_rollout_is_another_call(served: Served) -> None:
    plain, other = served.rollout(), served.rollout()
    client = other.get_openai_client()
    for _ in range(3):
        plain.chat(MESSAGES, max_tokens=4)
        client.chat.completions.create(model="model", messages=MESSAGES, max_tokens=4)
    assert _ids(plain) == _ids(other) and len({tuple(ids) for ids in _ids(other)}) == 3


def test_the_same_call_with_a_seed_is_repeated_within_its_rollout(served: Served) -> None:
    """By every interface, as a whole and as a stream; calls without a seed stay what they are."""
    one, other = served.rollout(), served.rollout(task=1)
    asked = {"model": "model", "max_tokens": 8, "seed": 7, "n": 2, "extra_body": {"ignore_eos": True}}
    for model in (one, other):
        with model.get_openai_client() as client:
            for _ in range(2):
                client.chat.completions.create(messages=MESSAGES, **asked)
                list(client.chat.completions.create(messages=MESSAGES, stream=True, **asked))
                client.completions.create(prompt=MESSAGES[0]["content"], **asked)
            client.chat.completions.create(messages=MESSAGES, **asked | {"seed": 8})
    for model in (one, other):
        made = _ids(model)
        assert made[:12] == made[:2] * 6 and made[0] != made[1]
        assert made[12:] != made[:2]
    assert not set(map(tuple, _ids(one))) & set(map(tuple, _ids(other)))


def test_a_stream_is_the_whole_answer(served: Served) -> None:
    plain, other = served.rollout(), served.rollout()
    expected = plain.chat(MESSAGES, n=2, max_tokens=6)
    with other.get_openai_client() as client:
        stream = list(client.chat.completions.create(
            model="model", messages=MESSAGES, n=2, max_tokens=6, stream=True, stream_options={"include_usage": True}
        ))  # fmt: skip
    texts, ends, used = {0: "", 1: ""}, dict[int, str](), 0
    for chunk in stream:
        used = chunk.usage.completion_tokens if chunk.usage else used
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert list(texts.values()) == [exp.response_text for exp in expected]
    assert ends == {number: exp.info["finish_reason"] for number, exp in enumerate(expected)}
    assert used == sum(len(exp.tokens) - exp.prompt_length for exp in expected) and _ids(other) == _ids(plain)


def test_the_asynchronous_client_and_completions(served: Served) -> None:
    async def asked(model: ModelWrapper) -> Any:
        async with model.get_openai_async_client() as client:
            return await client.completions.create(model="model", prompt=["1+1=", "2+2="], max_tokens=4, logprobs=0)

    plain, other = served.rollout(), served.rollout()
    expected = plain.generate(["1+1=", "2+2="], max_tokens=4)
    answer = asyncio.run(asked(other))
    assert [choice.text for choice in answer.choices] == [exp.response_text for exp in expected]
    assert answer.choices[1].logprobs.token_logprobs == pytest.approx(expected[1].logprobs.tolist())
    tokens = expected[0].tokens[: expected[0].prompt_length].tolist()
    again = served.rollout()
    by_ids = again.get_openai_client().completions.create(model="model", prompt=tokens, max_tokens=4)
    assert by_ids.choices[0].text == expected[0].response_text and _ids(again) == _ids(plain)[:1]


def test_without_max_tokens_an_answer_may_fill_the_model_and_a_prompt_that_fills_it_is_refused(served: Served) -> None:
    model = served.rollout()
    client = model.get_openai_client()
    answer = client.chat.completions.create(model="model", messages=MESSAGES, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == 64 and answer.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="max_model_len") as refused:
        client.chat.completions.create(model="model", messages=[{"role": "user", "content": CHARACTERS[:3] * 40}])
    assert refused.value.code == "context_length_exceeded" and len(model.history) == 1


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty", "is not available here"),
        ({"temperatur": 0.5}, "temperatur", "is not known here"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"content": "a"}]}, "messages", "needs a role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages", "of type 'text'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "needs image_url"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
         "messages", "must be JSON"),
        ({"tool_choice": "required"}, "tool_choice", "'required' needs `tools`"),
        ({"tool_choice": "any"}, "tool_choice", "'auto', 'none' or 'required'"),
        ({"tool_choice": {"type": "function", "function": {"name": "a"}}}, "tool_choice", "not one of `tools`"),
        ({"tools": [{"type": "web_search"}]}, "tools", "must be a function"),
        ({"response_format": {"type": "json_object"}}, "response_format", "is not available here"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"temperature": 1e-9}, "temperature", "must be 0 or at least"),
        ({"top_k": 2**70}, "top_k", "less than or equal"),
        ({"stream_options": {"usage": True}}, "stream_options.usage", "is not known here"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "must be text or a list of parts"),
        ({"messages": [{"role": "user", "name": 5}]}, "messages", "must be text"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages", "must be a list"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "[]"}}]}]},
         "messages", "must be an object"),
        ({"max_tokens": "many"}, "max_tokens", "integer"),
        ({"stop": ""}, None, None),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_done_is_refused_by_its_field(
    served: Served, given: dict[str, Any], param: str | None, words: str | None
) -> None:
    model = served.rollout()
    answer = _post(model, {"messages": MESSAGES, "max_tokens": 2} | given)
    if param is None:
        assert answer.status_code == 200
        return
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert words is not None and words in error["message"] and not model.history


def _post(model: ModelWrapper, body: Any, **how: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {model.api_key}"} | how.pop("headers", {})
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    url = f"{model.api_address}/v1/chat/completions"
    return httpx.post(url, headers=headers, timeout=60, trust_env=False, **content, **how)


def test_fields_that_change_no_token_are_taken(served: Served) -> None:
    answer = _post(served.rollout(), {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "1+1="}]}], "max_tokens": 2,
        "user": "me", "metadata": {"a": "b"}, "store": False, "frequency_penalty": 0, "logit_bias": {},
        "response_format": {"type": "text"}, "parallel_tool_calls": True, "tool_choice": "auto",
    })  # fmt: skip
    assert answer.status_code == 200, answer.text


def test_who_has_no_token_or_one_of_a_rollout_that_ended_is_told(served: Served) -> None:
    model = served.rollout()
    address, token = model.api_address, model.api_key
    body = {"messages": MESSAGES, "max_tokens": 2}
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": token}, {"Authorization": ""}):
        refused = _post(model, body, headers=headers)
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(f"{address}/health", trust_env=False).json() == {"status": "ok"}
    listed = httpx.get(f"{address}/v1/models", headers={"Authorization": f"Bearer {token}"}, trust_env=False).json()
    assert [(entry["id"], entry["max_model_len"]) for entry in listed["data"]] == [(model.model_name, 64)]
    assert httpx.get(f"{address}/v1/nothing", trust_env=False).json()["error"]["code"] == "unknown_url"
    del model
    gc.collect()
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{address}/v1/models", headers=headers, trust_env=False).status_code == 401


def test_a_client_that_a_workflow_keeps_is_one_of_the_rollout_that_began_last(served: Served) -> None:
    held = served.rollout(0)
    client = held.get_openai_client()
    client.chat.completions.create(model="model", messages=MESSAGES, max_tokens=4)
    held.take_over(served.rollout(1))
    assert not held.history
    client.chat.completions.create(model="model", messages=MESSAGES, max_tokens=4)
    plain = served.rollout(1)
    plain.chat(MESSAGES, max_tokens=4)
    assert _ids(held) == _ids(plain)


def test_a_body_that_is_too_large_or_no_json_and_too_many_requests(tmp_path: Path) -> None:
    small = Served(tmp_path, limits=EndpointLimits(body_bytes=500, requests=0))
    try:
        busy = _post(small.rollout(), {"messages": MESSAGES})
        assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")
        small.endpoint.close()
        small.endpoint._limits = EndpointLimits(body_bytes=500)
        model = small.rollout()
        assert _post(model, {"messages": [{"role": "user", "content": "a" * 600}]}).status_code == 413
        for body in (b"{", b"[1]", b"\xff", b"[" * 400):
            assert _post(model, body).json()["error"]["message"].startswith("the body must be")
    finally:
        small.close()


def test_without_the_key_there_is_no_client(served: Served) -> None:
    model = ModelWrapper(served.engine, config=served.config)
    for made in (model.get_openai_client, model.get_openai_async_client, lambda: model.api_address):
        with pytest.raises(Exception, match=r"E5612.*enable_openai_api: true") as refused:
            made()
        assert refused.value.code == "E5612"  # type: ignore[attr-defined]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_alternatives_are_the_most_probable_tokens_and_change_no_sample(served: Served, temperature: float) -> None:
    plain, whole, streamed = served.rollout(), served.rollout(), served.rollout()
    plain.chat(MESSAGES, n=2, max_tokens=6, temperature=temperature)
    asked: dict[str, Any] = {"n": 2, "max_tokens": 6, "temperature": temperature, "logprobs": True, "top_logprobs": 3}
    with whole.get_openai_client() as client:
        choices = client.chat.completions.create(model="model", messages=MESSAGES, **asked).choices
    with streamed.get_openai_client() as client:
        chunks = list(client.chat.completions.create(model="model", messages=MESSAGES, stream=True, **asked))
    assert _ids(plain) == _ids(whole) == _ids(streamed)
    for choice, exp in zip(choices, whole.history, strict=True):
        parts = [
            c.logprobs.content for chunk in chunks for c in chunk.choices if c.index == choice.index and c.logprobs
        ]
        assert [row for part in parts for row in part] == choice.logprobs.content
        for place, row in enumerate(choice.logprobs.content):
            values = [each.logprob for each in row.top_logprobs]
            assert len(values) == 3 and values == sorted(values, reverse=True)
            at = exp.prompt_length + place
            others = [token for token in range(len(served.engine.tokenizer)) if token != int(exp.tokens[at])][:5]
            scored = [
                float(plain.logprobs([*exp.tokens[:at].tolist(), token], temperature=temperature or 1.0)[-1])
                for token in others
            ]
            assert max(scored) <= values[0] + 1e-4, "no token is more probable than the first one"
            assert row.logprob <= values[0] and (temperature > 0 or row.logprob == values[0])
            if row.logprob in values:
                assert row.token == row.top_logprobs[values.index(row.logprob)].token


def test_alternatives_of_texts(served: Served) -> None:
    model = served.rollout()
    with model.get_openai_client() as client:
        (choice,) = client.completions.create(
            model="model", prompt="1+1=", max_tokens=3, temperature=0, logprobs=2
        ).choices
    tops = choice.logprobs.top_logprobs
    assert [len(top) for top in tops] == [2, 2, 2]
    pairs = zip(tops, choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
    assert all(top[token] == value == max(top.values()) for top, token, value in pairs)
