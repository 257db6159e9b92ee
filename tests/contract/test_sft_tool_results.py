"""Conversations of a dataset whose tools answered with a mapping are learned, as published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.buffer.files import dataset, write_jsonl
from tests.tiny import tiny_tokenizer
from trinity.buffer.dataset_reader import DatasetReader
from trinity.common.experience import Experience
from trinity.preflight.data import check_taskset

RESULT = {"sum": 3, "unit": None, "exact": True}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "1+2="},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "add", "content": RESULT},
    {"role": "assistant", "content": "3"},
]
PASSED_ON = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ m['tool_calls'] | tojson if m['tool_calls'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ONLY_TEXT = PASSED_ON.replace("{{ m['content'] }}", "{{ m['content'] if m['content'] is string else '' }}")
ADDS_TEXT = PASSED_ON.replace("{{ m['content'] }}", "{{ m['content'] + '' }}")
SHOWN = "{'sum': 3, 'exact': True}"
AS_JSON = json.dumps({"sum": 3, "exact": True})


def learned(folder: Path, template: str, **options: Any) -> tuple[Experience, PreTrainedTokenizerFast]:
    tokenizer = tiny_tokenizer(folder / "tokenizer", chat_template=template)
    path = write_jsonl(folder / "tools.jsonl", [{"messages": MESSAGES}])
    columns = {"prompt_type": "messages", "messages_key": "messages", **options}
    assert not check_taskset(dataset(path, format=columns), "here", schema="sft")
    reader = DatasetReader(
        dataset(path, format=columns), tokenizer=tokenizer, schema="sft", shuffle=False, total_epochs=1
    )
    [exp] = reader.read(1)
    return exp, tokenizer


@pytest.mark.difference("`content` of a tool's message that is a mapping")
@pytest.mark.parametrize(
    ("template", "written"),
    [(PASSED_ON, SHOWN), (ONLY_TEXT, AS_JSON), (ADDS_TEXT, AS_JSON)],
    ids=["any", "text", "adds"],
)
@pytest.mark.parametrize("every", [False, True])
def test_what_a_tool_returned_is_in_the_prompt(tmp_path: Path, template: str, written: str, every: bool) -> None:
    exp, tokenizer = learned(tmp_path, template, enable_concatenated_multi_turn=every)
    expected = tokenizer.encode(f"<tool>{written}<assistant>3")
    assert tokenizer.decode(expected) in tokenizer.decode(exp.tokens)
    assert tokenizer.encode(SHOWN) != tokenizer.encode(AS_JSON)
    answers = tokenizer.decode(exp.tokens[exp.prompt_length :][exp.action_mask])
    assert answers.endswith(f"3{tokenizer.eos_token}") and "sum" not in answers
    assert ("arguments" in answers) is every


def test_a_user_says_no_mapping(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": RESULT}, MESSAGES[-1]]}]
    path = write_jsonl(tmp_path / "bad.jsonl", rows)
    columns = {"prompt_type": "messages", "messages_key": "messages"}
    found = check_taskset(dataset(path, format=columns), "here", schema="sft")
    assert any("content must be text, got dict" in finding.message for finding in found)
