"""Tool calls through the endpoint: a model that calls a tool, the `openai` client, and the tokens that were sampled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.common.models.families import family_tokenizer
from tests.explorer.api.test_conversations import Rollouts, write_model
from trinity.common.models.chat_template import render_chat

TOOLS = [{
    "type": "function",
    "function": {"name": "sum", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}]  # fmt: skip
# Not as the template writes a call: without a blank after the colon.
SAID = '<think>\ntwo\n</think>\n\n<tool_call>\n{"name":"sum","arguments":{"a":1}}\n</tool_call><|im_end|>'
ASK = [{"role": "user", "content": "the sum of one and two"}]


def write_caller(folder: Path) -> None:
    """Write a model that most probably answers `ASK` with `SAID`."""
    write_model(folder, "qwen3")
    tokenizer = family_tokenizer("qwen3")
    prompt, _ = render_chat(tokenizer, ASK, tools=TOOLS)
    answer = [int(token) for token in tokenizer(SAID, add_special_tokens=False)["input_ids"]]
    tokens = torch.tensor([prompt + answer])
    labels = torch.tensor([[-100] * len(prompt) + answer])
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        loss = torch.tensor(1.0)
        for _ in range(400):
            loss = model(input_ids=tokens, labels=labels).loss
            if loss.item() < 0.01:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss.item() < 0.01, "the model has learned its answer"
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollouts]:
    folder = tmp_path_factory.mktemp("caller")
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    made = Rollouts(folder, "qwen3", write=write_caller, max_response_tokens=120, **parsers)
    yield made
    made.close()


def asked(client: Any, messages: list[dict[str, Any]], **options: Any) -> Any:
    return client.chat.completions.create(model="model", messages=messages, tools=TOOLS, temperature=0, **options)


@pytest.mark.parametrize("keeps_thoughts", [True, False])
def test_a_conversation_goes_on_from_the_tokens_of_a_call(caller: Rollouts, keeps_thoughts: bool) -> None:
    """A client that sends the thought back continues exactly; without it the template writes another conversation."""
    model = caller.rollout()
    before = caller.turns()
    with model.get_openai_client() as client:
        (choice,) = asked(client, ASK).choices
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("sum", {"a": 1})
        assert choice.message.reasoning_content == "two"
        answer = choice.message.model_dump(exclude_none=True)
        if not keeps_thoughts:
            del answer["reasoning_content"]
        asked(client, [*ASK, answer, {"role": "tool", "tool_call_id": call.id, "content": "3"}], max_tokens=4)
    first, second = model.extract_experience_from_history()
    tokenizer = family_tokenizer("qwen3")
    assert tokenizer.decode(first.tokens[first.prompt_length :]) == SAID
    is_continued = torch.equal(second.tokens[: len(first.tokens)], first.tokens)
    continued, split = (now - then for now, then in zip(caller.turns(), before, strict=True))
    assert (is_continued, continued, split) == (keeps_thoughts, keeps_thoughts, not keeps_thoughts)
    if is_continued:
        rest = tokenizer.decode(second.tokens[len(first.tokens) : second.prompt_length])
        assert rest == "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def test_a_stream_has_the_calls_of_the_whole(caller: Rollouts) -> None:
    model = caller.rollout()
    with model.get_openai_client() as client:
        chunks = list(asked(client, ASK, stream=True))
    (delta,) = [c.choices[0].delta for c in chunks if c.choices and c.choices[0].delta.tool_calls]
    (call,) = delta.tool_calls
    assert (call.index, call.function.name, json.loads(call.function.arguments)) == (0, "sum", {"a": 1})
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"


def test_without_tools_a_call_is_text_and_a_thought_is_not(caller: Rollouts) -> None:
    model = caller.rollout()
    (exp,) = model.chat(ASK, tools=TOOLS, temperature=0.0)
    assert exp.info["message"]["tool_calls"][0]["function"] == {"name": "sum", "arguments": {"a": 1}}
    with model.get_openai_client() as client:
        (choice,) = asked(client, ASK, tool_choice="none", max_tokens=8).choices
    assert choice.message.tool_calls is None
