"""Answers as messages: the tool calls and thoughts of each form, and what is no call."""

from __future__ import annotations

import random
from typing import Any

import pytest

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


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]


def test_every_form_of_the_configuration_is_tried_here() -> None:
    assert set(SAID) == set(TOOL_CALL_PARSERS)


@pytest.mark.parametrize("form", TOOL_CALL_PARSERS)
def test_calls_are_read_with_the_types_of_their_tool(form: str) -> None:
    message, again = (AnswerParser(form, None).message(SAID[form], tools=TOOLS) for _ in range(2))
    assert message["content"] == "" and calls(message) == [("add", ONE), ("add", TWO)]
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2 and message == again


@pytest.mark.parametrize("form", sorted(set(TOOL_CALL_PARSERS) - {"llama3_json"}))
def test_text_before_calls_and_thoughts_are_told_apart(form: str) -> None:
    said = "<think>\nwell </think>\n\nI add.\n" + SAID[form]
    message = AnswerParser(form, "qwen3").message(said, tools=TOOLS)
    assert (message["reasoning_content"], message["content"], len(message["tool_calls"])) == ("well", "I add.", 2)


@pytest.mark.parametrize("form", TOOL_CALL_PARSERS)
def test_without_tools_or_in_another_form_an_answer_is_its_text(form: str) -> None:
    assert AnswerParser(form, None).message(SAID[form])["content"] == SAID[form]
    for other, said in SAID.items():
        if other != form and {other, form} != {"hermes", "glm45"}:
            found = AnswerParser(form, None).message(said, tools=TOOLS)
            assert found == {"role": "assistant", "content": said}, other


@pytest.mark.parametrize("form", TOOL_CALL_PARSERS)
def test_any_part_of_a_call_is_text_or_calls_that_are_whole(form: str) -> None:
    source = random.Random(form)
    for _ in range(200):
        begin, end = sorted(source.sample(range(len(SAID[form]) + 1), 2))
        said = SAID[form][begin:end]
        message = AnswerParser(form, "qwen3").message(said, tools=TOOLS)
        if "tool_calls" in message:
            assert all(name.strip() == name and isinstance(given, dict) for name, given in calls(message))
        else:
            assert message == {"role": "assistant", "content": said}


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
