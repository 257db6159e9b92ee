"""Answers as messages: thoughts, text and tool calls.

The forms are data for the response parser of transformers. Their names are those of vLLM's parsers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers.utils.chat_parsing import parse_response

from trinity.common.constants import REASONING_PARSERS, TOOL_CALL_PARSERS

Message = dict[str, Any]
_CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_WHOLE_CALL = {"type": "function", "function": "{content}"}
_JSON_IN_TAGS = {
    "open_pattern": r"\s*<tool_call>",
    "close": "</tool_call>",
    "content": "json",
    "transform": _WHOLE_CALL,
}
_TEXT = {"content": "text", "content_args": {"strip": False}, "repeats": True, "join": ""}
_THOUGHT = {"open": "<think>", "close": "</think>"}
_THOUGHTS: Mapping[str, Mapping[str, Any]] = dict.fromkeys(REASONING_PARSERS, _THOUGHT)
_CALLS: Mapping[str, Mapping[str, Any]] = {
    "hermes": _JSON_IN_TAGS,
    "qwen3_coder": {
        "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
        "close_pattern": r"</function>\s*</tool_call>",
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
        "transform": _CALL,
    },
    "llama3_json": {
        "open_pattern": r"(?:\A\s*(?:<\|python_tag\|>)?|;)\s*(?=\{)",
        "close_pattern": r"(?=;\s*\{)",
        "content": "json",
        "transform": _WHOLE_CALL,
    },
    "mistral": {
        "open": "[TOOL_CALLS]",
        "content": "json",
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
        "transform_each": True,
        "repeats": False,
    },
    "glm45": {
        "open_pattern": r"\s*<tool_call>(?P<name>[^<\n]+)\n?",
        "close": "</tool_call>",
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
        },
        "transform": _CALL,
    },
    "deepseek_v3": {
        "open_pattern": (
            r"\s*(?:<｜tool▁calls▁begin｜>)?<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n]+)\n```json\n"
        ),
        "close_pattern": r"\n```<｜tool▁call▁end｜>(?:<｜tool▁calls▁end｜>)?",
        "content": "json",
        "transform": _CALL,
    },
}
assert tuple(_CALLS) == TOOL_CALL_PARSERS, "the configuration knows the forms"
# What newer models of the same name write.
_NEWER_CALLS: Mapping[str, Mapping[str, Any]] = {
    "mistral": {
        "open_pattern": (r"\[TOOL_CALLS\]\s*(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\[\]{}]*)?(?:\[ARGS\]|(?=\{))"),
        "close_pattern": r"(?=\[TOOL_CALLS\])",
        "content": "json",
        "transform": _CALL,
    },
}
# Texts with which a call may begin; before them an answer is not a call.
_CALL_MARKS: Mapping[str, tuple[str, ...]] = {
    "hermes": ("<tool_call>",),
    "qwen3_coder": ("<tool_call>",),
    "llama3_json": ("{", "<|python_tag|>"),
    "mistral": ("[TOOL_CALLS]",),
    "glm45": ("<tool_call>",),
    "deepseek_v3": ("<｜tool▁call",),
}
assert tuple(_CALL_MARKS) == TOOL_CALL_PARSERS, "every form has its begin"


class AnswerParser:
    """Reads answers of one model.

    Args:
        tool_calls: form of the tool calls; None: they are text.
        thoughts: form of the thoughts; None: they are text.
    """

    def __init__(self, tool_calls: str | None, thoughts: str | None) -> None:
        self._thought = None if thoughts is None else _THOUGHTS[thoughts]
        self._marks = () if tool_calls is None else _CALL_MARKS[tool_calls]
        found = () if tool_calls is None else (_CALLS[tool_calls], _NEWER_CALLS.get(tool_calls))
        self._calls = [{"repeats": True, **form} for form in found if form is not None]

    @property
    def thought(self) -> tuple[str, str] | None:
        """The texts before and after a thought; None: thoughts are text."""
        return None if self._thought is None else (self._thought["open"], self._thought["close"])

    def marks(self, *, has_tools: bool) -> tuple[str, ...]:
        """Return texts before which an answer is text, whatever follows."""
        return (*(self._marks if has_tools else ()), *(self.thought or ()))

    def message(self, text: str, *, prompt: str = "", tools: Sequence[Mapping[str, Any]] | None = None) -> Message:
        """Return an answer as a message with `content`.

        Where there are any, it has `reasoning_content` and `tool_calls`, each with an `id` that follows from the
        answer. A call that does not have the form is text, and so is a thought.

        Args:
            text: the answer with its special tokens, without the token that ended it.
            prompt: its prompt, which may have begun a thought.
            tools: descriptions of the tools; without any nothing is a call, and their types are those of arguments.
        """
        opening = self._opening(text, prompt)
        fields: dict[str, Any] = {"content": _TEXT}
        if self._thought is not None:
            fields["thinking"] = self._thought
        parsed = None
        for called in [{"tool_calls": form} for form in self._calls if tools] + [{}]:
            parsed = _parsed(text, fields | called, opening, tools)
            if parsed is not None and parsed[1]:
                break
        if parsed is None:
            return {"role": "assistant", "content": text}
        found, calls = parsed
        if not calls and "thinking" not in found:
            return {"role": "assistant", "content": text}
        message: Message = {"role": "assistant", "content": found.get("content", "").strip()}
        if found.get("thinking"):
            message["reasoning_content"] = found["thinking"]
        if calls:
            message["tool_calls"] = [{"id": _id(text, prompt, place), **call} for place, call in enumerate(calls)]
        return message

    def _opening(self, text: str, prompt: str) -> str:
        """Return the begin of a thought that stands in the prompt."""
        if self._thought is None:
            return ""
        begin, end = self._thought["open"], self._thought["close"]
        is_begun = prompt.rstrip().endswith(begin) or (end in text and begin not in text.partition(end)[0])
        return str(begin) if is_begun else ""


def _parsed(
    text: str, fields: Mapping[str, Any], opening: str, tools: Sequence[Mapping[str, Any]] | None
) -> tuple[Mapping[str, Any], list[Message]] | None:
    """Return the fields and the calls of an answer; None: not of this form."""
    template = {"start_anchor_pattern": r"\A", "fields": fields}
    try:
        found = parse_response(text, template, prefix=opening, tools=[dict(tool) for tool in tools or ()])
        return found, [_checked(call) for call in found.get("tool_calls") or ()]
    except (ValueError, KeyError):
        return None


def _checked(call: Mapping[str, Any]) -> Message:
    """Return a call with a name, and arguments that are a mapping.

    Raises:
        ValueError: it is no call.
    """
    function = call["function"]
    if not isinstance(function, Mapping):
        raise ValueError("no tool call")
    arguments = function.get("arguments", function.get("parameters", {}))
    if not isinstance(function.get("name"), str) or not isinstance(arguments, Mapping):
        raise ValueError("no tool call")
    return {"type": "function", "function": {"name": function["name"].strip(), "arguments": dict(arguments)}}


def _id(text: str, prompt: str, place: int) -> str:
    known = json.dumps([prompt, text, place]).encode()
    return f"call_{hashlib.blake2b(known, digest_size=12).hexdigest()}"
