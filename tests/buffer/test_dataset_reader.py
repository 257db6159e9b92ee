"""Conversations to imitate: tokens as the engine would see them, masks, order, long rows, exact resume."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from transformers import PreTrainedTokenizerFast

from tests.buffer.files import GOOD, dataset, write_jsonl
from tests.tiny import tiny_tokenizer
from trinity.buffer import get_buffer_reader
from trinity.buffer.dataset_reader import DatasetReader
from trinity.common.errors import CheckpointError, ConfigError, DataError, EnvironmentProblem

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MESSAGES = {"prompt_type": "messages", "messages_key": "messages"}


@pytest.fixture
def tokenizer(tmp_path: Path) -> PreTrainedTokenizerFast:
    made = tiny_tokenizer(tmp_path / "tokenizer", chat_template=CHATML)
    made.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    return made


def chat(*contents: str) -> dict:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]}


def read_one(tokenizer, tmp_path: Path, row: dict, **format_values):
    path = write_jsonl(tmp_path / "one.jsonl", [row])
    columns = format_values or {"prompt_key": "question", "response_key": "answer"}
    return DatasetReader(dataset(path, format=columns), tokenizer=tokenizer).read(1)[0]


def trained_text(tokenizer, experience) -> str:
    response = experience.tokens[experience.prompt_length :]
    return tokenizer.decode(response[experience.action_mask])


def test_the_prompt_is_the_engines_and_the_response_ends_with_the_end_of_turn(tokenizer, tmp_path: Path) -> None:
    row = {"question": "1+1=", "answer": "2", "who": "Be brief."}
    experience = read_one(
        tokenizer, tmp_path, row, prompt_key="question", response_key="answer", system_prompt_key="who"
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1="}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert experience.tokens[: experience.prompt_length].tolist() == prompt
    assert experience.response_text == "2<|im_end|>"
    assert experience.action_mask.tolist() == [True, True]
    assert experience.tokens[-1] == tokenizer.eos_token_id
    assert experience.reward is None and experience.logprobs is None


def test_a_system_prompt_from_the_configuration_yields_to_the_column(tokenizer, tmp_path: Path) -> None:
    columns = {"prompt_key": "question", "response_key": "answer", "system_prompt": "S", "system_prompt_key": "who"}
    with_column = read_one(tokenizer, tmp_path, {"question": "q", "answer": "a", "who": "W"}, **columns)
    without = read_one(tokenizer, tmp_path, {"question": "q", "answer": "a", "who": None}, **columns)
    assert "system\nW<" in with_column.prompt_text and "system\nS<" in without.prompt_text


def test_without_an_end_of_turn_in_the_template_the_end_of_text_is_added(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}{{ ':' }}{% endif %}"
    tokenizer = tiny_tokenizer(tmp_path / "t", chat_template=template)
    experience = read_one(tokenizer, tmp_path, {"question": "q", "answer": "abc"})
    # The template opens the answer with a colon that the whole conversation does not have.
    assert experience.prompt_text == "q:" and experience.response_text == "abc<eos>"


def test_of_a_conversation_the_last_answer_is_imitated(tokenizer, tmp_path: Path) -> None:
    experience = read_one(tokenizer, tmp_path, chat("a", "b", "c", "d", "thanks"), **MESSAGES)
    prompt = tokenizer.apply_chat_template(
        chat("a", "b", "c")["messages"], add_generation_prompt=True, return_dict=False
    )
    assert experience.tokens[: experience.prompt_length].tolist() == prompt
    assert trained_text(tokenizer, experience) == experience.response_text == "d<|im_end|>"


def test_concatenated_turns_imitate_every_answer_and_nothing_else(tokenizer, tmp_path: Path) -> None:
    columns = {**MESSAGES, "enable_concatenated_multi_turn": True}
    experience = read_one(tokenizer, tmp_path, chat("a", "b", "c", "d"), **columns)
    assert experience.response_text == (
        "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>"
    )
    assert trained_text(tokenizer, experience) == "b<|im_end|>d<|im_end|>"
    assert experience.experience_type == "multi_turn"


def test_a_template_that_rewrites_earlier_turns_is_refused_for_concatenated_turns(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}{{ m['content'] }}{% else %}{{ '-' }}"
        "{% endif %}{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    )
    tokenizer = tiny_tokenizer(tmp_path / "t", chat_template=template)
    columns = {**MESSAGES, "enable_concatenated_multi_turn": True}
    rows = [chat("a", "b")] * 3 + [chat("a", "b", "c", "d")]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    reader = DatasetReader(dataset(path, format=columns), tokenizer=tokenizer, total_epochs=1)
    assert len(reader.read(10)) == 3
    assert [(bad.line, bad.code) for bad in reader.quarantined] == [(4, "E4021")]
    assert "set format.enable_concatenated_multi_turn to false" in reader.quarantined[0].reason
    assert reader.metrics()["sample/quarantined_row_count"] == 1.0


def test_a_conversation_that_the_template_refuses_is_left_out(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m['content'] == 'x' %}{{ raise_exception('no x') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    tokenizer = tiny_tokenizer(tmp_path / "t", chat_template=template)
    path = write_jsonl(tmp_path / "d.jsonl", [*GOOD, {"question": "x", "answer": "1"}])
    reader = DatasetReader(dataset(path, total_epochs=2), tokenizer=tokenizer)
    assert len(reader.read(100)) == 12
    assert [(bad.line, "no x" in bad.reason) for bad in reader.quarantined] == [(7, True)]
    broken = DatasetReader(dataset(path), tokenizer=tiny_tokenizer(tmp_path / "n", chat_template=None))
    with pytest.raises(EnvironmentProblem, match="E3107"):
        broken.read(1)


def test_every_epoch_is_another_permutation_that_follows_from_the_seed(tokenizer, tmp_path: Path) -> None:
    config = dataset(write_jsonl(tmp_path / "d.jsonl", GOOD), total_epochs=2)

    def order(seed: int, **options) -> list[int]:
        return [row.info["index"] for row in DatasetReader(config, tokenizer=tokenizer, seed=seed, **options).read(100)]

    assert sorted(order(1)[:6]) == sorted(order(1)[6:]) == list(range(6))
    assert order(1) == order(1) != order(2)
    assert order(1)[:6] != order(1)[6:]
    assert order(1, shuffle=False) == [*range(6), *range(6)]


def test_reading_continues_exactly_and_ends(tokenizer, tmp_path: Path) -> None:
    config = dataset(write_jsonl(tmp_path / "d.jsonl", GOOD), total_epochs=3)
    whole = DatasetReader(config, tokenizer=tokenizer, seed=3)
    expected = [row.eid.uid for row in whole.read(18)]
    assert len(set(expected)) == 18 and whole.read(4) == []
    first = DatasetReader(config, tokenizer=tokenizer, seed=3)
    assert [row.eid.uid for row in first.read(8)] == expected[:8]
    second = DatasetReader(config, tokenizer=tokenizer, seed=3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [row.eid.uid for row in second.read(100)] == expected[8:]
    third = DatasetReader(config, tokenizer=tokenizer, seed=3)
    third.skip(8)
    assert [row.eid.uid for row in third.read(3)] == expected[8:11]
    third.skip(100)
    assert third.read(1) == []
    write_jsonl(tmp_path / "d.jsonl", GOOD[1:])
    with pytest.raises(CheckpointError, match=r"E7005.*fingerprint"):
        DatasetReader(config, tokenizer=tokenizer, seed=3).load_state_dict(first.state_dict())
    with pytest.raises(CheckpointError, match=r"selector_type"):
        DatasetReader(config, tokenizer=tokenizer, shuffle=False).load_state_dict(first.state_dict())


def test_long_rows_are_dropped_cut_or_an_error_and_always_counted(tokenizer, tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "a" * n} for n in (1, 50, 2)] + [{"question": "q" * 60, "answer": "a"}]
    config = dataset(write_jsonl(tmp_path / "d.jsonl", rows), total_epochs=1)
    # The template takes 6 + 1 + 11 characters and marks around the question: 18 prompt tokens or so.
    options = {"tokenizer": tokenizer, "shuffle": False, "max_length": 40}
    dropping = DatasetReader(config, **options)
    assert [row.response_text for row in dropping.read(10)] == ["a<|im_end|>", "aa<|im_end|>"]
    assert dropping.num_overlong == 2 and dropping.metrics()["sample/overlong_count"] == 2.0
    cutting = DatasetReader(config, **options, overlong="truncate")
    read = cutting.read(10)
    assert [len(row.tokens) for row in read][1] == 40 and len(read) == 3
    assert [row.truncate_status for row in read] == [None, "response_truncated", None]
    assert cutting.num_overlong == 2
    with pytest.raises(DataError, match=r"E4014.*d.jsonl:2: the row has .* tokens, more than 40"):
        DatasetReader(config, **options, overlong="error").read(10)


def test_a_dataset_in_which_no_row_fits_is_an_error(tokenizer, tmp_path: Path) -> None:
    config = dataset(write_jsonl(tmp_path / "d.jsonl", GOOD), total_steps=5)
    with pytest.raises(DataError, match="no row fits into 4 tokens"):
        DatasetReader(config, tokenizer=tokenizer, max_length=4).read(1)


def test_bad_rows_and_columns_are_found_before_training(tokenizer, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [*GOOD, {"question": "q", "answer": None}])
    reader = DatasetReader(dataset(path), tokenizer=tokenizer)
    assert len(reader) == 6 and reader.quarantined[0].key == "answer"
    file = reader.write_quarantine(tmp_path / "quarantine")
    assert file is not None and json.loads(file.read_text())["line"] == 7
    with pytest.raises(DataError, match=r"E4004.*buffer 'sft': format.prompt_key is 'prompt'"):
        DatasetReader(dataset(path, format={}), tokenizer=tokenizer)
    with pytest.raises(DataError, match=r"E4001.*buffer 'sft'"):
        DatasetReader(dataset(tmp_path / "absent.jsonl"), tokenizer=tokenizer)
    no_answer = write_jsonl(tmp_path / "n.jsonl", [chat("only a question"), chat("a", "b")])
    reader = DatasetReader(dataset(no_answer, format=MESSAGES, total_epochs=1), tokenizer=tokenizer)
    assert len(reader.read(5)) == 1 and reader.quarantined[0].code == "E4020"


def test_the_published_function_returns_the_reader(tokenizer, tmp_path: Path) -> None:
    config = dataset(write_jsonl(tmp_path / "d.jsonl", GOOD))
    assert len(get_buffer_reader(config, tokenizer=tokenizer, seed=1).read(4)) == 4
    with pytest.raises(ConfigError, match="E1615.*a dataset needs a tokenizer"):
        get_buffer_reader(config)


def test_a_list_of_files_of_several_kinds_is_read_in_its_order_and_resumes(tokenizer, tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [*GOOD[:3], {"question": None, "answer": "1"}])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(GOOD[3:5]), tmp_path / "b.parquet")
    (tmp_path / "c").mkdir()
    third = write_jsonl(tmp_path / "c" / "train.jsonl", [GOOD[5], "{"])
    places = [first, tmp_path / "b.parquet", third.parent]

    def opened(paths: list[Path]) -> DatasetReader:
        config = dataset(paths)
        return DatasetReader(config, tokenizer=tokenizer, shuffle=False, total_epochs=2, max_bad_row_ratio=0.5)

    reader = opened(places)
    assert [(bad.file, bad.line, bad.code) for bad in sorted(reader.quarantined, key=lambda bad: bad.file)] == [
        (str(first), 4, "E4011"),
        (str(third), 2, "E4010"),
    ]
    expected = [row["answer"] for row in GOOD]
    begun = [trained_text(tokenizer, each).removesuffix("<|im_end|>") for each in reader.read(4)]
    state = json.loads(json.dumps(reader.state_dict()))
    again = opened(places)
    again.load_state_dict(state)
    rest = [trained_text(tokenizer, each).removesuffix("<|im_end|>") for each in again.read(100)]
    assert begun + rest == expected * 2
    with pytest.raises(CheckpointError, match="changed since the checkpoint"):
        opened(places[::-1]).load_state_dict(state)
    pairs = [{"prompt": "q", "chosen": "good", "rejected": "bad"}]
    several = [write_jsonl(tmp_path / f"{name}.jsonl", pairs) for name in "xy"]
    made = DatasetReader(dataset(several, format={}), tokenizer=tokenizer, schema="dpo", total_epochs=1)
    assert len(made.read(9)) == 2
