"""Answers as messages: the tool calls and thoughts of each form, and what is no call."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.common.models.families import family_tokenizer
from trinity.common.constants import REASONING_PARSERS, TOOL_CALL_PARSERS
from trinity.common.models.answer_parsers import AnswerParser

PROPERTIES = {"a": {"type": "integer"}, "b": {"type": "string"}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": PROPERTIES}}}]
ONE, TWO = {"a": 1, "b": "2"}, {"a": 3, "b": "x y"}
SAID = {
    "hermes": (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "2"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": "x y"}}\n</tool_call>'
    ),
    "qwen3_coder": "\n".join(
        f"<tool_call>\n<function=add>\n<parameter=a>\n{a}\n</parameter>\n<parameter=b>\n{b}\n</parameter>\n</function>\n</tool_call>"
        for a, b in ((1, "2"), (3, "x y"))
    ),
    "llama3_json": (
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": "2"}}; '
        '{"name": "add", "parameters": {"a": 3, "b": "x y"}}'
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": "2"}}, '
        '{"name": "add", "arguments": {"a": 3, "b": "x y"}}]'
    ),
    "glm45": "\n".join(
        f"<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>{a}</arg_value>\n<arg_key>b</arg_key>\n<arg_value>{b}</arg_value>\n</tool_call>"
        for a, b in ((1, "2"), (3, "x y"))
    ),
    "deepseek_v3": "<｜tool▁calls▁begin｜>"
    + "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{text}\n```<｜tool▁call▁end｜>"
        for text in ('{"a": 1, "b": "2"}', '{"a": 3, "b": "x y"}')
    )
    + "<｜tool▁calls▁end｜>",
}  # fmt: skip
NEWER_MISTRAL = (
    '[TOOL_CALLS]add[ARGS]{"a": 1, "b": "2"}[TOOL_CALLS]add[ARGS]{"a": 3, "b": "x y"}',
    '[TOOL_CALLS]add{"a": 1, "b": "2"}[TOOL_CALLS]add{"a": 3, "b": "x y"}',
    '[TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{"a": 1, "b": "2"}\n[TOOL_CALLS] add [ARGS] {"a": 3, "b": "x y"}\n',
)
SAYINGS = [*SAID.items(), *(("mistral", said) for said in NEWER_MISTRAL)]
NAMES = [*SAID, "mistral-args", "mistral-name", "mistral-id"]


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]


def test_every_form_of_the_configuration_is_tried_here() -> None:
    assert set(SAID) == set(TOOL_CALL_PARSERS)


@pytest.mark.parametrize(("form", "said"), SAYINGS, ids=NAMES)
def test_calls_are_read_with_the_types_of_their_tool(form: str, said: str) -> None:
    message, again = (AnswerParser(form, None).message(said, tools=TOOLS) for _ in range(2))
    assert message["content"] == "" and calls(message) == [("add", ONE), ("add", TWO)]
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2 and message == again


@pytest.mark.parametrize(("form", "said"), SAYINGS, ids=NAMES)
def test_text_before_calls_and_thoughts_are_told_apart(form: str, said: str) -> None:
    if form == "llama3_json":
        return  # its calls are the whole answer
    said = "<think>\nwell </think>\n\nI add.\n" + said
    message = AnswerParser(form, "qwen3").message(said, tools=TOOLS)
    assert (message["reasoning_content"], message["content"], len(message["tool_calls"])) == ("well", "I add.", 2)


@pytest.mark.parametrize("form", TOOL_CALL_PARSERS)
def test_without_tools_or_in_another_form_an_answer_is_its_text(form: str) -> None:
    assert AnswerParser(form, None).message(SAID[form])["content"] == SAID[form]
    for other, said in SAID.items():
        if other != form and {other, form} != {"hermes", "glm45"}:
            found = AnswerParser(form, None).message(said, tools=TOOLS)
            assert found == {"role": "assistant", "content": said}, other


@pytest.mark.parametrize(("form", "whole"), SAYINGS, ids=NAMES)
def test_any_part_of_a_call_is_text_or_calls_that_are_whole(form: str, whole: str) -> None:
    source = random.Random(form)
    for _ in range(200):
        begin, end = sorted(source.sample(range(len(whole) + 1), 2))
        said = whole[begin:end]
        message = AnswerParser(form, "qwen3").message(said, tools=TOOLS)
        if "tool_calls" in message:
            assert all(name.strip() == name and isinstance(given, dict) for name, given in calls(message))
        else:
            assert message == {"role": "assistant", "content": said}


@pytest.mark.parametrize("mark", [None, "[ARGS]", ""], ids=["list", "args", "name"])
def test_calls_of_mistral_are_those_that_vllm_reads(tmp_path: Path, mark: str | None) -> None:
    """As a whole and token by token; the tokenizer says which form is the model's."""
    pytest.importorskip("vllm")
    family_tokenizer("mistral").save_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    if mark is not None:
        tokenizer.add_tokens([AddedToken("[ARGS]", special=True)])
    source = random.Random(str(mark))
    values = [1, -2.5, "x y", "{", "}]", 'quo"te', "größe 数", [1, {"c": "]"}], {}, None]
    for _ in range(40):
        made = [
            (source.choice(["total", "web.search-2"]), dict(zip("ab", source.sample(values, k=2), strict=True)))
            for _ in range(source.choice([1, 1, 2, 3]))
        ]
        if mark is None:
            written = "[TOOL_CALLS] " + json.dumps([{"name": name, "arguments": given} for name, given in made])
        else:
            written = "".join(f"[TOOL_CALLS]{name}{mark}{json.dumps(given)}" for name, given in made)
        text = source.choice(["", "I add.\n", "{so}: "])
        message = AnswerParser("mistral", None).message(text + written, tools=TOOLS)
        assert (message["content"], calls(message)) == (text.strip(), made)
        for vllms_text, vllms_calls in of_vllm(tokenizer, text + written):
            assert (vllms_text.strip(), vllms_calls) == (text.strip(), made)


def of_vllm(tokenizer: PreTrainedTokenizerFast, said: str) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield text and calls by vLLM's parser: of the whole, then of the stream."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers.mistral_tool_parser import MistralToolParser

    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "ask"}], tools=TOOLS)
    found = MistralToolParser(tokenizer, request.tools).extract_tool_calls(said, request)
    yield found.content or "", [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]
    parser, ids, before = MistralToolParser(tokenizer, request.tools), list[int](), ""
    content, names, arguments = "", dict[int, str](), dict[int, str]()
    for token in [*tokenizer(said, add_special_tokens=False)["input_ids"], None]:
        if token is None:
            delta = parser.finish_streaming()
        else:
            text = tokenizer.decode([*ids, token])
            new = text[len(before) :] if not text.endswith("\ufffd") else ""
            delta = parser.extract_tool_calls_streaming(before, before + new, new, ids, [*ids, token], [token], request)
            ids, before = [*ids, token], before + new
        content += (delta.content or "") if delta else ""
        for call in delta.tool_calls or () if delta else ():
            names[call.index] = names.get(call.index, "") + (call.function.name or "")
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    yield content, [(names[index], json.loads(arguments[index])) for index in sorted(names)]


@pytest.mark.parametrize("form", REASONING_PARSERS)
def test_a_thought_may_begin_in_the_prompt_and_need_not_end(form: str) -> None:
    parser = AnswerParser(None, form)
    for said, prompt, thought, text in (
        ("<think>well</think>three", "ask", "well", "three"),
        ("well\n</think>\n\nthree", "ask<think>\n", "well", "three"),
        ("well</think>three", "ask", "well", "three"),
        ("well", "ask<think>\n", "well", ""),
    ):
        message = parser.message(said, prompt=prompt)
        assert (message["reasoning_content"], message["content"]) == (thought, text)
    assert parser.message(" three <b> ") == {"role": "assistant", "content": " three <b> "}
