"""Rows of datasets for training: pairs for DPO, texts for CPT, tools and templates; bad rows are set aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import PreTrainedTokenizerFast

from tests.buffer.files import dataset, write_jsonl
from tests.buffer.test_dataset_reader import MESSAGES, chat
from tests.buffer.test_dataset_reader import tokenizer as tokenizer
from tests.docs.pages import page
from tests.tiny import tiny_tokenizer
from trinity.buffer import get_buffer_reader
from trinity.buffer.dataset_reader import DatasetReader
from trinity.common.config.model import ModelConfig
from trinity.common.errors import ConfigError, DataError, EnvironmentProblem
from trinity.common.experience import Experience
from trinity.common.models.chat_template import load_tokenizer
from trinity.preflight.data import check_taskset

TEXTS = {"prompt_key": "question", "chosen_key": "good", "rejected_key": "bad"}
ROWS = [{"question": f"{a}+{a}=", "good": str(2 * a), "bad": str(2 * a + 1)} for a in range(1, 7)]
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "int"}}}}},
    {"type": "function", "function": {"name": "say", "parameters": {"properties": {"text": {"type": "string"}}}}},
]
WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m | tojson }}{% if m['role'] == 'assistant'"
    " %}{{ eos_token }}{% endif %}{% endfor %}"
)


def says(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def reader_of(tokenizer: PreTrainedTokenizerFast, path: Path, columns: dict[str, Any], **options: Any) -> DatasetReader:
    options = {"schema": "dpo", "shuffle": False, "total_epochs": 1, **options}
    return DatasetReader(dataset(path, format=columns), tokenizer=tokenizer, **options)


def read_pair(tokenizer: PreTrainedTokenizerFast, folder: Path, row: dict[str, Any], **columns: Any) -> Experience:
    return reader_of(tokenizer, write_jsonl(folder / "one.jsonl", [row]), columns or TEXTS).read(1)[0]


def problems(path: Path, columns: dict[str, Any], schema: str) -> list[tuple[str, str]]:
    found = check_taskset(dataset(path, format=columns), "here", schema=schema)
    return [(finding.code, finding.message) for finding in found]


def test_a_pair_is_the_engines_prompt_and_two_responses(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    row = ROWS[0] | {"who": "Add."}
    pair = read_pair(tokenizer, tmp_path, row, **TEXTS, system_prompt_key="who", system_prompt="not this")
    messages = [says("system", "Add."), says("user", "1+1=")]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert pair.experience_type == "dpo" and pair.tokens.tolist() == prompt and pair.prompt_length == len(prompt)
    assert [tokenizer.decode(side) for side in (pair.chosen, pair.rejected)] == ["2<|im_end|>", "3<|im_end|>"]
    assert pair.response_text == "2<|im_end|>" and pair.reward is None


@pytest.mark.parametrize("form", ["lists", "mappings", "json", "whole conversations", "no column of prompts"])
def test_pairs_of_messages_mean_the_same_in_every_form(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, form: str
) -> None:
    prompt, good, bad = [says("user", "1+1=")], says("assistant", "2"), says("assistant", "3")
    row: dict[str, Any] = {"messages": prompt, "chosen": [good], "rejected": [bad]}
    if form == "mappings":
        row |= {"chosen": good, "rejected": bad}
    if form in ("whole conversations", "no column of prompts"):
        row |= {"chosen": [*prompt, good], "rejected": [*prompt, bad]}
    if form == "no column of prompts":
        del row["messages"]
    if form == "json":
        row = {key: json.dumps(value) for key, value in row.items()}
    columns = MESSAGES if "messages" in row else {"prompt_type": "messages"}
    pair = read_pair(tokenizer, tmp_path, row, **columns)
    expected = read_pair(tokenizer, tmp_path, ROWS[0])
    for name in ("tokens", "chosen", "rejected"):
        assert getattr(pair, name).tolist() == getattr(expected, name).tolist(), name


@pytest.mark.parametrize(
    ("columns", "row", "code", "reason"),
    [
        (TEXTS, {"bad": "2"}, "E4022", "bad: is equal to good, so that nothing is preferred"),
        (TEXTS, {"bad": None}, "E4011", "bad: is null"),
        (TEXTS, {"good": " "}, "E4011", "good: is empty"),
        (TEXTS, {"question": ""}, "E4011", "question: is empty"),
        (TEXTS, {"good": [says("assistant", "2")]}, "E4022", "good: must be text, as prompt_type plaintext says"),
        (TEXTS, {"bad": "2\0"}, "E4012", "bad: contains NUL"),
        (TEXTS, {"tools": {"name": "add"}}, "E4023", "tools: must be a list of mappings, one a tool, got dict"),
        (TEXTS, {"tools": "no json"}, "E4023", "got str"),
        (MESSAGES, {"chosen": "2"}, "E4022", "chosen: must be a list of messages, as prompt_type messages says"),
        (MESSAGES, {"chosen": "2"}, "E4022", "got str; write `prompt_type: plaintext` for texts"),
        (MESSAGES, {"rejected": []}, "E4011", "rejected: is empty"),
        (MESSAGES, {"rejected": None}, "E4011", "rejected: is null"),
        (MESSAGES, {"messages": None}, "E4020", "messages: must be a list of messages, got NoneType"),
        (MESSAGES, {"messages": [says("system", "s")]}, "E4020", "no user message"),
        (MESSAGES, {"chosen": [says("user", "2")]}, "E4022", "must add one assistant message to the prompt, got user"),
        (MESSAGES, {"rejected": [says("assistant", "2"), says("user", "?")]}, "E4022", "got assistant, user"),
        (MESSAGES, {"chosen": [says("robot", "2")]}, "E4020", "role must be one of"),
        (MESSAGES, {"rejected": [says("assistant", "2")]}, "E4022", "is equal to chosen"),
    ],
)
def test_a_row_that_is_no_pair_is_set_aside_and_counted(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, columns: dict[str, Any], row: dict[str, Any], code: str,
    reason: str,
) -> None:  # fmt: skip
    """B98."""
    good = ROWS
    if columns is MESSAGES:
        good = [
            {"messages": [says("user", r["question"])], "chosen": [says("assistant", r["good"])],
             "rejected": [says("assistant", r["bad"])]} for r in ROWS
        ]  # fmt: skip
    path = write_jsonl(tmp_path / "d.jsonl", [good[0] | row, *good])
    reader = reader_of(tokenizer, path, columns)
    assert len(reader) == 6 and reader.metrics()["sample/quarantined_row_count"] == 1.0
    assert reader.quarantined[0].code == code and reason in str(reader.quarantined[0])
    found = problems(path, columns, "dpo")
    assert [c for c, _ in found] == [f"W{code[1:]}"] and f"{path}:1: " in found[0][1] and reason in found[0][1]


def test_answers_that_the_template_makes_equal_are_set_aside_and_stay_so_after_a_resume(tmp_path: Path) -> None:
    """B98."""
    template = "{% for m in messages %}{{ m['content'] | trim }}{% endfor %}"
    tokenizer = tiny_tokenizer(tmp_path / "t", chat_template=template)
    path = write_jsonl(tmp_path / "d.jsonl", [ROWS[0] | {"bad": "2 "}, *ROWS])
    first = reader_of(tokenizer, path, TEXTS, total_epochs=2)
    assert [exp.info["index"] for exp in first.read(3)] == [1, 2, 3]
    assert [row.code for row in first.quarantined] == ["E4022"]
    second = reader_of(tokenizer, path, TEXTS, total_epochs=2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.metrics() == first.metrics() and second.quarantined == first.quarantined
    assert [exp.eid.uid for exp in second.read(20)] == [exp.eid.uid for exp in first.read(20)]
    assert second.metrics() == first.metrics() and len(second.quarantined) == 1


def test_a_dataset_without_the_rejected_column_names_those_at_hand(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    rows = [{"question": row["question"], "chosen": row["good"], "rejcted": row["bad"]} for row in ROWS]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    words = "format.rejected_key is 'rejected', which is not a column; did you mean 'rejcted'? columns: chosen, "
    with pytest.raises(DataError, match="E4004") as caught:
        reader_of(tokenizer, path, {"prompt_key": "question"})
    assert words in str(caught.value)
    assert [code for code, text in problems(path, {"prompt_key": "question"}, "dpo") if words in text] == ["E4004"]


def test_a_pair_is_too_long_if_either_response_is(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    rows = [ROWS[0], ROWS[1] | {"bad": "9" * 40}, ROWS[2] | {"good": "1" * 39 + "2", "bad": "1" * 40}, ROWS[3]]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    dropping = reader_of(tokenizer, path, TEXTS, max_length=40)
    assert [exp.info["index"] for exp in dropping.read(9)] == [0, 3] and dropping.num_overlong == 2
    cutting = reader_of(tokenizer, path, TEXTS, max_length=40, overlong="truncate")
    read = cutting.read(9)
    # What is left of the third pair is the same on both sides.
    assert [exp.info["index"] for exp in read] == [0, 1, 3] and cutting.num_overlong == 2
    assert read[1].prompt_length + len(read[1].rejected) == 40 and read[1].truncate_status == "response_truncated"


def test_a_text_is_learnt_whole_but_its_first_token(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    rows = [{"text": "abc"}, {"text": "x" * 30}, {"text": None}]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    reader = reader_of(tokenizer, path, {"prompt_key": "text"}, schema="cpt", max_length=10)
    whole, cut = reader.read(5)
    assert tokenizer.decode(whole.tokens) == "abc<|im_end|>" and whole.prompt_length == 1
    assert whole.action_mask.tolist() == [True] * 3 and whole.truncate_status is None
    assert tokenizer.decode(cut.tokens) == "x" * 10 and cut.truncate_status == "response_truncated"
    assert reader.metrics() == {"sample/quarantined_row_count": 1.0, "sample/overlong_count": 1.0}
    assert [code for code, _ in problems(path, {"prompt_key": "text"}, "cpt")] == ["W4011"]
    assert [code for code, _ in problems(path, {}, "cpt")] == ["E4004"]


def test_a_text_of_one_token_teaches_nothing(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "t", chat_template=None)  # texts need no template
    tokenizer.eos_token = None
    path = write_jsonl(tmp_path / "d.jsonl", [{"text": "a"}, {"text": "ab"}])
    reader = reader_of(tokenizer, path, {"prompt_key": "text"}, schema="cpt")
    assert [exp.info["index"] for exp in reader.read(5)] == [1]
    assert [(row.line, row.code) for row in reader.quarantined] == [(1, "E4024")]


@pytest.mark.difference("Tools and messages in parquet files")
def test_tools_reach_the_template_as_they_were_written_from_every_file(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(
        tmp_path / "t", characters="".join(map(chr, range(32, 127))) + "\n", chat_template=WITH_TOOLS
    )
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
    rows = [
        {"messages": [says("user", "q"), call, {"role": "tool", "content": "1", "name": "add"}, says("assistant", "1")],
         "tools": TOOLS},
        {"messages": [says("user", "q"), says("assistant", "a")], "tools": TOOLS[:1]},
        {"messages": [says("user", "q"), says("assistant", "a")], "tools": []},
    ]  # fmt: skip
    as_json = [{key: json.dumps(value) for key, value in row.items()} for row in rows]
    (tmp_path / "parquet").mkdir()
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "parquet" / "train.parquet")
    places = [write_jsonl(tmp_path / "a.jsonl", rows), write_jsonl(tmp_path / "b.jsonl", as_json), tmp_path / "parquet"]
    tokens = [
        [exp.tokens.tolist() for exp in reader_of(tokenizer, place, MESSAGES, schema="sft").read(5)] for place in places
    ]
    assert tokens[0] == tokens[1] == tokens[2] and len(tokens[0]) == 3
    first = tokenizer.decode(tokens[0][0])
    assert json.loads(first[: first.index("]{") + 1]) == TOOLS
    assert '"tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]' in first
    assert not tokenizer.decode(tokens[0][2]).startswith("[")


@pytest.mark.runs("docs/datasets.md", "json")
def test_the_row_of_the_page_is_learnt(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (row,) = page("docs/datasets.md").code("json")
    path = write_jsonl(tmp_path / "d.jsonl", [json.loads(row)])
    (exp,) = reader_of(tokenizer, path, MESSAGES, schema="sft").read(5)
    assert exp.response_text == "42<|im_end|>"


def test_an_answer_that_is_no_text_is_set_aside_and_a_number_is_learnt(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    columns = {"prompt_key": "question", "response_key": "answer"}
    path = write_jsonl(tmp_path / "d.jsonl", [{"question": "q", "answer": ["a"]}, {"question": "q", "answer": 42}])
    reader = reader_of(tokenizer, path, columns, schema="sft")
    assert [exp.response_text for exp in reader.read(5)] == ["42<|im_end|>"]
    assert str(reader.quarantined[0]).endswith("d.jsonl:1: answer: must be text, got a list with str")


def test_a_tool_that_is_no_mapping_is_set_aside(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [chat("q", "a") | {"tools": ["add"]}, chat("q", "a")])
    reader = reader_of(tokenizer, path, MESSAGES, schema="sft")
    assert len(reader) == 1 and "must be a list of mappings, one a tool, got a list with str" in str(
        reader.quarantined[0]
    )


def test_the_template_of_the_format_wins_over_that_of_the_model(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "model", chat_template="{% for m in messages %}T{{ m['content'] }}{% endfor %}")
    custom = "{% for m in messages %}M{{ m['content'] }}{% endfor %}"
    own = "{% for m in messages %}F{{ m['content'] }}{% endfor %}"
    path = write_jsonl(tmp_path / "d.jsonl", [chat("q", "a")])

    def prompt_of(custom_chat_template: str | None, **columns: Any) -> str:
        model = ModelConfig(model_path=str(tmp_path / "model"), custom_chat_template=custom_chat_template)
        reader = reader_of(load_tokenizer(model), path, MESSAGES | columns, schema="sft")
        return str(reader.read(1)[0].prompt_text)

    assert prompt_of(None) == "Tq" and prompt_of(custom) == "Mq"
    assert prompt_of(custom, chat_template=own) == prompt_of(None, chat_template=own) == "Fq"
    with pytest.raises(EnvironmentProblem, match=r"E3109.*format.chat_template of buffer 'sft', line 1"):
        prompt_of(None, chat_template="{% if %}")


def test_a_dataset_of_another_kind_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", ROWS)
    config = dataset(path, format=TEXTS, schema_type="dpo")
    assert get_buffer_reader(config, tokenizer=tokenizer).read(1)[0].experience_type == "dpo"
    with pytest.raises(ConfigError, match=r"E1613.*read for one of sft, dpo, cpt, got 'experience'"):
        get_buffer_reader(config, tokenizer=tokenizer, schema="experience")


def test_a_named_column_of_tools_must_be_there(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    rows = [chat(f"q{n}", "a") for n in range(60)]
    path = write_jsonl(tmp_path / "short.jsonl", [*rows[:5], rows[5] | {"tools": TOOLS}])
    with pytest.raises(DataError, match="format.tools_key is 'tool', .*did you mean 'tools'") as caught:
        reader_of(tokenizer, path, MESSAGES | {"tools_key": "tool"}, schema="sft")
    assert caught.value.code == "E4004"
    (found,) = problems(path, MESSAGES | {"tools_key": "tool"}, "sft")
    assert found[0] == "E4004" and found[1].startswith("here: format.tools_key is 'tool'")
    late = write_jsonl(tmp_path / "late.jsonl", [*rows, rows[0] | {"functions": TOOLS}])
    columns = MESSAGES | {"tools_key": "functions"}
    assert problems(late, columns, "sft") == [], "the first rows do not show all columns"
    assert len(reader_of(tokenizer, late, columns, schema="sft")) == 61


def test_rows_with_one_fault_are_said_once_with_their_number(tmp_path: Path) -> None:
    found = problems(write_jsonl(tmp_path / "d.jsonl", [row | {"bad": row["good"]} for row in ROWS]), TEXTS, "dpo")
    assert [code for code, _ in found] == ["E4022"] * 3
    assert "d.jsonl:3:" in found[2][1] and found[2][1].endswith("(and 3 more of the first 6 rows)")
    (conversations, _) = problems(write_jsonl(tmp_path / "m.jsonl", [chat("q", "a")]), {}, "sft")
    assert "for conversations write `messages_key: messages`" in conversations[1]


def test_a_conversation_without_an_answer_is_found_before_the_run(tmp_path: Path) -> None:
    rows = [{"messages": [says("user", "q")]}, {"messages": [says("assistant", "a"), says("user", "q")]}]
    found = problems(write_jsonl(tmp_path / "d.jsonl", rows), MESSAGES, "sft")
    assert [code for code, _ in found] == ["E4020"] * 2 and "no assistant message that answers" in found[1][1]


def test_a_template_that_leaves_the_answer_out_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [chat("q", "a")] * 3)
    only_users = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
    for all_turns in (False, True):
        columns = MESSAGES | {"chat_template": only_users, "enable_concatenated_multi_turn": all_turns}
        with pytest.raises(DataError, match="writes nothing for") as caught:
            reader_of(tokenizer, path, columns, schema="sft").read(3)
        assert caught.value.code == "E4021"


def test_an_answer_of_tool_calls_is_never_learnt_as_an_empty_text(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    joined = (
        "{% for m in messages %}{{ m['content'] or m['tool_calls'] | tojson }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '#' }}{% endif %}"
    )
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}
    rows = [{"messages": [says("user", "q"), call]}] * 3
    with pytest.raises(DataError, match="does not continue from the opening") as caught:
        reader_of(
            tokenizer, write_jsonl(tmp_path / "d.jsonl", rows), MESSAGES | {"chat_template": joined}, schema="sft"
        ).read(3)
    assert caught.value.code == "E4021"
    path = write_jsonl(tmp_path / "text.jsonl", [chat("q", "a")])
    (told,) = reader_of(tokenizer, path, MESSAGES | {"chat_template": joined}, schema="sft").read(1)
    assert told.response_text == "a<|im_end|>", "a text does continue"
