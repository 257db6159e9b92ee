"""`/v1/responses` and `/v1/messages` with their own clients: the answers of chat completions in another form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
import torch

from tests.explorer.api.test_conversations import Rollouts
from tests.explorer.api.test_endpoint import MESSAGES, Served
from tests.explorer.api.test_tool_calls import ASK, TOOLS, write_caller
from trinity.common.models.model import ModelWrapper

ANTHROPIC_TOOLS = [{"name": "sum", "input_schema": TOOLS[0]["function"]["parameters"]}]
RESPONSES_TOOLS = [
    {"type": "function", "name": "sum", "parameters": TOOLS[0]["function"]["parameters"], "strict": False}
]
QUESTION = ASK[0]["content"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollouts]:
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    made = Rollouts(tmp_path_factory.mktemp("caller"), "qwen3", write=write_caller, max_response_tokens=120, **parsers)
    yield made
    made.close()


def claude(model: ModelWrapper) -> anthropic.Anthropic:
    client = anthropic.DefaultHttpxClient(trust_env=False)
    return anthropic.Anthropic(base_url=model.api_address, api_key=model.api_key, http_client=client, max_retries=0)


def _ids(model: ModelWrapper) -> list[list[int]]:
    return [exp.tokens.tolist() for exp in model.history]


@pytest.mark.parametrize("stop", [None, ["1", "2", "3", "4"]])
def test_a_message_is_the_answer_of_the_wrapper(served: Served, stop: list[str] | None) -> None:
    plain, whole, streamed = served.rollout(), served.rollout(), served.rollout()
    (exp,) = plain.chat(MESSAGES, max_tokens=12, temperature=1.0, top_p=0.9, stop=stop)
    asked: dict[str, Any] = {"model": "model", "messages": MESSAGES, "max_tokens": 12}
    asked["extra_body"] = {"temperature": 1.0, "top_p": 0.9}
    asked |= {"stop_sequences": stop} if stop else {}
    with claude(whole) as client:
        message = client.messages.create(**asked)
    with claude(streamed) as client, client.messages.stream(**asked) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert _ids(plain) == _ids(whole) == _ids(streamed)
    for found in (message, final):
        assert "".join(block.text for block in found.content) == exp.response_text
        assert (found.usage.input_tokens, found.usage.output_tokens) == (exp.prompt_length, exp.response_length)
        if exp.info["finish_reason"] == "length":
            assert (found.stop_reason, found.stop_sequence) == ("max_tokens", None)
        else:
            assert found.stop_sequence == exp.info.get("stop_text")
            assert found.stop_reason == ("end_turn" if found.stop_sequence is None else "stop_sequence")
    assert "".join(texts) == exp.response_text
    if stop:
        assert message.stop_sequence in stop


def test_a_conversation_of_messages_goes_on_from_the_tokens_of_a_call(caller: Rollouts) -> None:
    model, before = caller.rollout(), caller.turns()
    asked: dict[str, Any] = {"model": "model", "max_tokens": 120, "tools": ANTHROPIC_TOOLS}
    asked["extra_body"] = {"temperature": 0.0}
    with claude(model) as client:
        message = client.messages.create(messages=[{"role": "user", "content": QUESTION}], **asked)
        thought, call = message.content
        assert (message.stop_reason, thought.type, thought.thinking) == ("tool_use", "thinking", "two")
        assert (call.type, call.name, call.input) == ("tool_use", "sum", {"a": 1})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
        conversation = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ]
        client.messages.create(messages=conversation, **asked | {"max_tokens": 4})
        with client.messages.stream(messages=[{"role": "user", "content": QUESTION}], **asked) as stream:
            final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "tool_use"]
    assert (final.content[0].thinking, final.content[1].input) == ("two", {"a": 1})
    first, second, _ = model.extract_experience_from_history()
    assert torch.equal(second.tokens[: len(first.tokens)], first.tokens)
    assert caller.turns()[0] - before[0] == 1


def test_a_response_is_the_answer_of_the_wrapper(served: Served) -> None:
    plain, whole, streamed = served.rollout(), served.rollout(), served.rollout()
    messages = [{"role": "system", "content": "1"}, *MESSAGES]
    (exp,) = plain.chat(messages, max_tokens=12)
    asked: dict[str, Any] = {
        "model": "model",
        "instructions": "1",
        "input": MESSAGES[0]["content"],
        "max_output_tokens": 12,
    }
    with whole.get_openai_client() as client:
        response = client.responses.create(**asked)
    with streamed.get_openai_client() as client:
        events = list(client.responses.create(stream=True, **asked))
    assert _ids(plain) == _ids(whole) == _ids(streamed)
    assert response.output_text == exp.response_text == events[-1].response.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == exp.response_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    is_cut = exp.info["finish_reason"] == "length"
    assert response.status == ("incomplete" if is_cut else "completed") == events[-1].type.removeprefix("response.")
    assert response.usage.total_tokens == len(exp.tokens)


def test_responses_have_calls_and_thoughts(caller: Rollouts) -> None:
    model, before = caller.rollout(), caller.turns()
    asked: dict[str, Any] = {"model": "model", "temperature": 0, "tools": RESPONSES_TOOLS}
    with model.get_openai_client() as client:
        response = client.responses.create(input=QUESTION, **asked)
        thought, call = response.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "two")
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "sum", {"a": 1})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        items = [{"role": "user", "content": QUESTION}, *response.output, result]
        client.responses.create(input=items, max_output_tokens=4, **asked)
        with client.responses.stream(input=QUESTION, **asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "function_call"]
    assert "response.reasoning_text.delta" in kinds and "response.function_call_arguments.done" in kinds
    first, second, _ = model.extract_experience_from_history()
    assert torch.equal(second.tokens[: len(first.tokens)], first.tokens)
    assert caller.turns()[0] - before[0] == 1


def test_thoughts_come_in_parts_and_calls_at_the_end(caller: Rollouts) -> None:
    model = caller.rollout()
    with model.get_openai_client() as client:
        chunks = client.chat.completions.create(model="model", messages=ASK, tools=TOOLS, temperature=0, stream=True)
        deltas = [chunk.choices[0].delta for chunk in chunks]
    thought = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thought) == "two"
    assert not any(delta.content for delta in deltas) and sum(bool(delta.tool_calls) for delta in deltas) == 1


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_tool_that_must_be_called_is_called_or_the_request_fails(caller: Rollouts, is_stream: bool) -> None:
    model = caller.rollout()
    asked: dict[str, Any] = {"model": "model", "messages": ASK, "temperature": 0, "stream": is_stream}
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    with model.get_openai_client() as client:
        for choice in ("required", {"type": "function", "function": {"name": "sum"}}):
            found = client.chat.completions.create(tools=TOOLS, tool_choice=choice, **asked)
            assert len(list(found)) > 0 if is_stream else found.choices[0].finish_reason == "tool_calls"
        assert len(model.history) == 2
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            client.chat.completions.create(tools=TOOLS, tool_choice="required", max_tokens=3, **asked)
        assert (refused.value.code, refused.value.param) == ("tool_choice_not_met", "tool_choice")
        named = {"type": "function", "function": {"name": "other"}}
        with pytest.raises(openai.UnprocessableEntityError, match="not other alone"):
            client.chat.completions.create(tools=[*TOOLS, other], tool_choice=named, max_tokens=40, **asked)
    assert len(model.history) == 2, "what is refused is not recorded"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "`thinking` is not available here"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "a block of type 'document'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "must be base64"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "must have role user or assistant"),
        ({"messages": [{"role": "user", "content": 5}]}, "must be text or a list of blocks"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "needs id, name"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{}]}]}]},
         "only text blocks can be read here"),
        ({"system": [{"type": "image"}]}, "only text blocks can be read here"),
        ({"tool_choice": {"type": "tool", "name": "a"}}, "not one of `tools`"),
        ({"temprature": 1}, "is not known here"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_read_is_refused_in_the_form_of_the_interface(
    served: Served, given: dict[str, Any], words: str
) -> None:
    model = served.rollout()
    asked: dict[str, Any] = {"model": "model", "messages": MESSAGES, "max_tokens": 4}
    with claude(model) as client, pytest.raises(anthropic.BadRequestError) as refused:
        client.post("/v1/messages", cast_to=dict, body=asked | given)
    error = refused.value.body["error"]  # type: ignore[index, call-overload]
    assert error["type"] == "invalid_request_error" and words in error["message"] and not model.history


def test_a_wrong_key_is_refused_in_the_form_of_the_interface(served: Served) -> None:
    model = served.rollout()
    with claude(model) as client, pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(model="model", messages=MESSAGES, max_tokens=4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"previous_response_id": "resp_1"}, "`previous_response_id` is not available here"),
        ({"text": {"format": {"type": "json_object"}}}, "`text` is not available here"),
        ({"tools": [{"type": "web_search"}]}, "`tools`"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "function_call_output and reasoning are read here"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "needs image_url"),
        ({"input": [{"role": "user", "content": "a", "audio": 1}]}, "`audio` is not known here"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "a function_call has call_id"),
        ({"input": [{"type": "reasoning", "encrypted_content": "a"}]}, "not encrypted"),
        ({"input": [{"type": "reasoning", "content": [5]}]}, "must have type 'reasoning_text'"),
    ],
)
def test_a_response_that_cannot_be_had_is_refused(served: Served, given: dict[str, Any], words: str) -> None:
    model = served.rollout()
    with model.get_openai_client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.post("/responses", cast_to=dict, body={"model": "model", "input": "1"} | given)
    assert words in refused.value.body["message"] and not model.history  # type: ignore[index, call-overload]
