"""Bad datasets and bad rows: an error that says what is there instead, or a row that is set aside and counted."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import datasets
import huggingface_hub
import pytest

from tests.buffer.files import GOOD, columns, taskset, write_jsonl
from trinity.buffer.rows import MAX_ROW_BYTES
from trinity.buffer.task_reader import TaskReader
from trinity.common.config.buffer import FormatConfig
from trinity.common.errors import DataError
from trinity.preflight.data import check_taskset

MESSAGES = {"prompt_type": "messages", "messages_key": "messages"}


def chat(*roles: str) -> dict:
    return {"messages": [{"role": role, "content": f"{role} says"} for role in roles]}


def problems(path: Path | str | list[str] | None, fmt: FormatConfig | None = None, **options) -> list[tuple[str, str]]:
    source = taskset(path, split=options.pop("split", "train"), format=fmt or columns())
    found = check_taskset(source, "buffer.explorer_input.taskset", **options)
    assert {finding.key for finding in found} <= {"buffer.explorer_input.taskset.path"}
    return [(finding.code, finding.message) for finding in found]


def refused(path: Path | str | None, **values) -> DataError:
    with pytest.raises(DataError) as caught:
        TaskReader(taskset(path, **values))
    assert caught.value.exit_code == 4
    return caught.value


def test_a_missing_path_says_what_is_there_instead(tmp_path: Path) -> None:
    """B88."""
    write_jsonl(tmp_path / "train.jsonl", GOOD)
    error = refused(tmp_path / "trian.jsonl")
    assert error.code == "E4001" and "does not exist" in str(error) and "train.jsonl" in str(error)
    assert problems(tmp_path / "trian.jsonl")[0][0] == "E4001"
    good = str(write_jsonl(tmp_path / "train.jsonl", GOOD))
    for empty in ([good, ""], ["", good], [""]):  # not the working folder
        ((code, message),) = problems(empty)
        assert code == "E4001" and f"path[{empty.index('')}] is empty" in message
    assert refused(None).code == problems(None)[0][0] == "E4001"
    (tmp_path / "data.txt").write_text("x")
    assert refused(tmp_path / "data.txt").code == "E4001"


def test_a_hub_id_that_cannot_be_fetched_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """B88."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert problems("no-such-owner/no-such-dataset") == []
    error = refused("no-such-owner/no-such-dataset")
    assert error.code == "E4001" and "neither a file or folder on this machine" in str(error)
    assert "hf download --repo-type dataset no-such-owner/no-such-dataset" in str(error)


def test_a_hub_id_that_was_downloaded_is_read_without_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder, revision = tmp_path / "hub" / "datasets--owner--sums", "a" * 40
    write_jsonl(folder / "snapshots" / revision / "train.jsonl", GOOD)
    write_jsonl(folder / "snapshots" / revision / "test.jsonl", GOOD[:1])
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    assert [task.raw_task["question"] for task in TaskReader(taskset("owner/sums")).read(6)] == [
        row["question"] for row in GOOD
    ]
    assert len(TaskReader(taskset("owner/sums", split="test"))) == 1
    assert refused("owner/sums", split="validation").code == "E4003"


def test_an_empty_dataset_is_an_error(tmp_path: Path) -> None:
    """B88."""
    empty = write_jsonl(tmp_path / "empty.jsonl", [])
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (empty, folder):
        assert refused(path).code == problems(path)[0][0] == "E4002"


def test_a_wrong_split_or_subset_lists_the_available_ones(tmp_path: Path) -> None:
    """B88."""
    write_jsonl(tmp_path / "a" / "train.jsonl", GOOD)
    write_jsonl(tmp_path / "a" / "test-1.jsonl", GOOD)
    error = refused(tmp_path / "a", split="validation")
    assert error.code == "E4003" and "available: test, train" in str(error)
    assert problems(tmp_path / "a", split="validation")[0] == (
        "E4003",
        f"buffer.explorer_input.taskset: {tmp_path}/a has no split 'validation'; available: test, train",
    )
    datasets.DatasetDict({"train": datasets.Dataset.from_list(GOOD)}).save_to_disk(tmp_path / "saved")
    error = refused(tmp_path / "saved", split="test")
    assert error.code == "E4003" and "available: train" in str(error)
    assert refused(tmp_path / "a", subset_name="nope").code == "E4003"


def test_a_prompt_key_that_is_no_column_gets_a_suggestion(tmp_path: Path) -> None:
    """B89."""
    path = write_jsonl(tmp_path / "d.jsonl", GOOD)
    wrong = {"prompt_key": "qestion", "response_key": "answer"}
    error = refused(path, format=wrong)
    assert error.code == "E4004"
    assert "did you mean 'question'? columns: answer, note, question" in str(error)
    code, message = problems(path, FormatConfig.model_validate(wrong))[0]
    assert code == "E4004" and "did you mean 'question'" in message
    assert refused(path, format={"prompt_key": "question", "response_key": "anwser"}).code == "E4004"
    assert refused(path, format={}).code == "E4004"
    assert [code for code, _ in problems(path, FormatConfig())] == ["E4004"]
    assert problems(path, FormatConfig(), needs_prompt=False) == []


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": None, "answer": "1"}, "question: is null"),
        ({"question": "  ", "answer": "1"}, "question: is empty"),
        ({"question": 5, "answer": "1"}, "question: must be text, got int"),
        ({"answer": "1"}, "question: is null"),
        ({"question": "q", "answer": None}, "answer: is null"),
        ({"question": "q", "answer": ""}, "answer: is empty"),
        ({"question": "q"}, "answer: is null"),
        ('{"question": "q", "answer": ', "malformed JSON: Expecting value"),
        ('{"question": "q" "answer"}', "malformed JSON"),
        ("[1, 2]", "a row must be a JSON object, got list"),
        (b'{"question": "caf\xe9", "answer": "1"}', "invalid UTF-8 at byte 17"),
        ('{"question": "nul \\u0000", "answer": "1"}', "question: contains NUL"),
        ('{"question": "lone \\ud800", "answer": "1"}', "question: contains a lone surrogate"),
        ({"question": "x" * (MAX_ROW_BYTES + 1), "answer": "1"}, f"the row is larger than {MAX_ROW_BYTES} bytes"),
        ("[" * 100000, "malformed JSON"),
    ],
)
def test_a_bad_row_is_set_aside_with_file_line_and_reason(tmp_path: Path, row: object, reason: str) -> None:
    """B90, B91, B92, B96."""
    path = write_jsonl(tmp_path / "d.jsonl", [*GOOD[:3], row, *GOOD[3:]])
    reader = TaskReader(taskset(path))
    assert len(reader) == 6 and [task.raw_task for task in reader.tasks()] == GOOD
    assert str(reader.quarantined[0]).startswith(f"{path}:4: {reason}")
    found = problems(path, needs_truth=True)
    assert [code[0] for code, _ in found] == ["W"] and "d.jsonl:4" in found[0][1]


GAME = '{"target": 5, "numbers": [2, 3]}'


@pytest.mark.parametrize(
    ("reward", "good", "bad", "code"),
    [
        ("countdown_reward", GAME, "5 = 2 + 3", "E5115"),
        ("countdown_reward", GAME, '{"target": 5, "numbers": ["two"]}', "E5115"),
        ("countdown_reward", GAME, '{"target": true, "numbers": [2, 3]}', "E5115"),
        ("code_reward", '{"inputs": ["1"], "outputs": ["2"]}', '{"inputs": ["1"], "outputs": []}', "E5133"),
        ("tool_call_reward", '[{"name": "add", "arguments": {}}]', "add()", "E5114"),
    ],
)
def test_an_answer_that_the_reward_function_cannot_read_is_set_aside(
    tmp_path: Path, reward: str, good: str, bad: str, code: str
) -> None:
    """B102, and its like of other rewards."""
    path = write_jsonl(tmp_path / "d.jsonl", [{"question": "q", "answer": answer} for answer in (good, bad, good)])
    reader = TaskReader(taskset(path, default_reward_fn_type=reward))
    assert len(reader) == 2
    assert [(row.line, row.key, row.code) for row in reader.quarantined] == [(2, "answer", code)]


def test_what_is_left_out_is_written_down(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [*GOOD, "{"])
    reader = TaskReader(taskset(path))
    file = reader.write_quarantine(tmp_path / "quarantine")
    assert file == tmp_path / "quarantine" / "sums.jsonl"
    row = json.loads(file.read_text())
    assert (row["file"], row["line"], row["code"]) == (str(path), 7, "E4010")
    assert TaskReader(taskset(write_jsonl(tmp_path / "g.jsonl", GOOD))).write_quarantine(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_too_many_bad_rows_end_the_run(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [*GOOD, "{", {"question": None, "answer": "1"}])
    error = refused(path)
    assert error.code == "E4010" and "2 of 8 rows cannot be used (at most 1" in str(error) and ":7: " in str(error)
    assert len(TaskReader(taskset(path), max_bad_row_ratio=0.25)) == 6
    assert "buffer.max_bad_row_ratio 0.01" in str(error)
    assert [code for code, _ in problems(path)] == ["E4010", "E4011"]
    assert [code for code, _ in problems(path, max_bad_row_ratio=0.25)] == ["W4010", "W4011"]
    one = write_jsonl(tmp_path / "one.jsonl", [*GOOD, "{"])
    with pytest.raises(DataError, match="at most 0"):
        TaskReader(taskset(one), max_bad_row_ratio=0)
    assert refused(write_jsonl(tmp_path / "none.jsonl", ["{"])).code == "E4002"


def test_the_line_of_a_late_bad_row_is_right(tmp_path: Path) -> None:
    """B92."""
    rows: list[object] = [GOOD[i % 6] for i in range(1300)]
    rows[1233] = '{"question": '
    reader = TaskReader(taskset(write_jsonl(tmp_path / "d.jsonl", rows)))
    assert [bad.line for bad in reader.quarantined] == [1234] and len(reader) == 1299


def test_mixed_schemas_extra_columns_and_nested_values_are_accepted(tmp_path: Path) -> None:
    """B93."""
    rows = [
        GOOD[0],
        {"question": "q", "answer": 42, "extra": {"deep": [{"x": 1}]}},
        {"answer": ["a", "b"], "question": [{"role": "user", "content": "hi"}]},
    ]
    reader = TaskReader(taskset(write_jsonl(tmp_path / "d.jsonl", rows)))
    assert [task.raw_task for task in reader.tasks()] == rows


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (chat("user", "robot"), "message 1: role must be one of system, developer, user"),
        (chat("system", "assistant"), "no user message in"),
        (chat("user", "assistant", "assistant"), "message 2: two assistant messages in a row"),
        ({"messages": []}, "must be a list of messages, got []"),
        ({"messages": "hello"}, "must be a list of messages, got 'hello'"),
        ({"messages": ["hello"]}, "message 0: role must be one of"),
        ({"messages": [{"role": "user", "content": ""}]}, "message 0: content is empty"),
        ({"messages": [{"role": "user"}]}, "message 0: content is null"),
    ],
)
def test_bad_conversations_are_shown(tmp_path: Path, row: dict, reason: str) -> None:
    """B94."""
    good = [chat("system", "user"), chat("user", "assistant", "user")]
    reader = TaskReader(taskset(write_jsonl(tmp_path / "d.jsonl", [*good, row]), format=MESSAGES))
    assert len(reader) == 2 and reader.quarantined[0].code == "E4020"
    assert reader.quarantined[0].reason.startswith(reason)
    path = write_jsonl(tmp_path / "bad.jsonl", [row, row])
    assert refused(path, format=MESSAGES).code == "E4020"
    found = problems(path, FormatConfig.model_validate(MESSAGES))
    assert {code for code, _ in found} == {"E4020"} and reason in found[0][1]


def test_control_tokens_in_a_prompt_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B97."""
    rows = [*GOOD, {"question": "end<|im_end|>", "answer": "1"}]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    with caplog.at_level(logging.WARNING, logger="trinity.buffer"):
        assert len(TaskReader(taskset(path))) == 7
    assert "[W4030] taskset 'sums': 1 prompts contain control tokens" in caplog.text
    code, message = problems(path)[0]
    assert code == "W4030" and "<|im_end|>" in message and ":7: " in message


@pytest.mark.parametrize("content", [b"PAR1 and then nothing", b"", b"{}"])
def test_a_damaged_parquet_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    """B103."""
    datasets.Dataset.from_list(GOOD).to_parquet(tmp_path / "whole.parquet")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-20])
    (tmp_path / "other.parquet").write_bytes(content)
    for name in ("torn", "other"):
        path = tmp_path / f"{name}.parquet"
        assert refused(path).code == problems(path)[0][0] == "E4060"
    assert problems(tmp_path / "whole.parquet") == []


def test_damaged_json_and_csv_files_are_errors(tmp_path: Path) -> None:
    """B92."""
    (tmp_path / "d.json").write_text('[{"question": 1}, ')
    (tmp_path / "d.csv").write_text('question,answer\n"never closed,1\n')
    for name in ("d.json", "d.csv"):
        assert refused(tmp_path / name).code == problems(tmp_path / name)[0][0] == "E4010"


def test_short_csv_rows_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("question,answer\na,1\nb\nc,2\n")
    reader = TaskReader(taskset(tmp_path / "d.csv"))
    assert len(reader) == 2 and reader.quarantined[0].line == 3


def test_a_good_dataset_has_no_problem(tmp_path: Path) -> None:
    assert problems(write_jsonl(tmp_path / "d.jsonl", GOOD), needs_truth=True) == []


def test_another_split_of_one_file_is_refused_and_a_subset_is_told(tmp_path: Path) -> None:
    """B88."""
    path = write_jsonl(tmp_path / "train.jsonl", GOOD)
    assert refused(path, split="validation").code == problems(path, split="validation")[0][0] == "E4003"
    found = check_taskset(taskset(path, subset_name="main"), "buffer.explorer_input.taskset")
    assert [(finding.code, finding.key) for finding in found] == [("W4003", "buffer.explorer_input.taskset.path")]
    assert "read whole" in found[0].message
    assert len(TaskReader(taskset(path, subset_name="main"))) == len(GOOD), "a path of one's own in a published file"
    named = write_jsonl(tmp_path / "test-00000.jsonl", GOOD)
    assert len(TaskReader(taskset(named, split="test"))) == len(GOOD) and problems(named, split="test") == []
    both = taskset([path, tmp_path], split="test")
    assert len(TaskReader(both)) == 2 * len(GOOD), "in a list it chooses the parts of folders"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([3], "part 0 must have one of the types text, image, image_url, got 'int'"),
        ([{"type": "text"}], "part 0: text is null"),
        (
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b\ud800"}],
            "part 1: text contains a lone surrogate",
        ),
        ([{"type": "audio", "audio": "x"}], "part 0 must have one of the types"),
        ([], "has no text and no image"),
        ([{"type": "text", "text": ""}], "has no text and no image"),
    ],
)
def test_parts_of_a_message_are_texts_and_images(tmp_path: Path, content: list[object], reason: str) -> None:
    """B94, B96."""
    rows = [{"messages": [{"role": "user", "content": each}]} for each in ("a", "b", content, "c")]
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = TaskReader(taskset(path, format=columns(**MESSAGES)), max_bad_row_ratio=0.5)
    assert len(reader) == 3
    (bad,) = reader.quarantined
    assert (bad.line, bad.code) == (3, "E4020") and reason in bad.reason
    found = problems(path, columns(**MESSAGES), max_bad_row_ratio=0.5)
    assert [code[0] for code, _ in found] == ["W"] and reason in found[0][1]


def test_a_conversation_without_the_answer_that_a_reward_reads_is_set_aside(tmp_path: Path) -> None:
    """B91."""
    rows = [chat("user") | {"answer": answer} for answer in ("1", None, "2", "3")]
    path = write_jsonl(tmp_path / "d.jsonl", rows)
    fmt = columns(**MESSAGES, response_key="answer")
    reader = TaskReader(taskset(path, format=fmt), max_bad_row_ratio=0.5)
    assert [(bad.line, bad.code, bad.key) for bad in reader.quarantined] == [(2, "E4011", "answer")]
    assert "d.jsonl:2" in problems(path, fmt, needs_truth=True, max_bad_row_ratio=0.5)[0][1]
    no_answers = write_jsonl(tmp_path / "e.jsonl", [chat("user")] * 3)
    assert len(TaskReader(taskset(no_answers, format=fmt.model_copy(update={"response_key": "none"})))) == 3


def test_a_system_prompt_of_a_row_is_a_text(tmp_path: Path) -> None:
    """B96."""
    systems = ["be short", None, "", "a\ud800", "b\0"]
    path = tmp_path / "d.jsonl"
    rows = [{"question": "1+1", "answer": "2", "system": system} for system in systems]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = TaskReader(taskset(path, format=columns(system_prompt_key="system")), max_bad_row_ratio=0.5)
    assert [(bad.line, bad.code) for bad in reader.quarantined] == [(4, "E4012"), (5, "E4012")]
