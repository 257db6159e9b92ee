"""Reading tasks from every form of dataset, in order, epoch by epoch, with exact resume."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.buffer.files import GOOD, taskset, write_jsonl
from trinity.buffer import get_buffer_reader
from trinity.buffer.task_reader import TaskReader
from trinity.common.errors import CheckpointError, ConfigError, DataError
from trinity.common.rewards import REWARD_FUNCTIONS
from trinity.common.schema.sql_schema import Base, TaskModel
from trinity.common.workflows import WORKFLOWS
from trinity.preflight.data import check_taskset


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def questions(reader: TaskReader, n: int) -> list[str]:
    return [task.raw_task["question"] for task in reader.read(n)]


def jsonl(folder: Path) -> Path:
    return write_jsonl(folder / "data.jsonl", GOOD)


def json_array(folder: Path) -> Path:
    path = folder / "data.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    return path


def csv(folder: Path) -> Path:
    path = folder / "data.csv"
    lines = [f"{row['question']},{row['answer']},{row['note']}" for row in GOOD]
    path.write_text("\n".join(["question,answer,note", *lines]) + "\n", encoding="utf-8")
    return path


def parquet(folder: Path) -> Path:
    datasets.Dataset.from_list(GOOD).to_parquet(folder / "data.parquet")
    return folder / "data.parquet"


def parquet_shards(folder: Path) -> Path:
    for shard in range(2):
        rows = GOOD[shard * 3 : shard * 3 + 3]
        datasets.Dataset.from_list(rows).to_parquet(folder / "hub" / "data" / f"train-0000{shard}-of-00002.parquet")
    datasets.Dataset.from_list(GOOD[:1]).to_parquet(folder / "hub" / "data" / "test-00000-of-00001.parquet")
    return folder / "hub"


def named_splits(folder: Path) -> Path:
    write_jsonl(folder / "splits" / "train.jsonl", GOOD)
    write_jsonl(folder / "splits" / "test.jsonl", GOOD[:1])
    return folder / "splits"


def saved_dict(folder: Path) -> Path:
    rows = datasets.Dataset.from_list(GOOD)
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(folder / "saved")
    return folder / "saved"


def saved_dataset(folder: Path) -> Path:
    datasets.Dataset.from_list(GOOD).save_to_disk(folder / "saved")
    return folder / "saved"


def hub_layout(folder: Path) -> Path:
    write_jsonl(folder / "card" / "rows" / "part.jsonl", GOOD)
    card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: rows/part.jsonl\n---\n"
    (folder / "card" / "README.md").write_text(card, encoding="utf-8")
    return folder / "card"


SOURCES = [
    jsonl,
    json_array,
    csv,
    parquet,
    parquet_shards,
    named_splits,
    saved_dict,
    saved_dataset,
    hub_layout,
]


@pytest.mark.parametrize("make", SOURCES)
def test_every_form_of_dataset_gives_the_same_tasks(make, tmp_path: Path) -> None:
    subset = "main" if make is hub_layout else None
    reader = TaskReader(taskset(make(tmp_path), subset_name=subset), batch_size=4)
    assert len(reader) == 6 and reader.quarantined == []
    assert questions(reader, 6) == [row["question"] for row in GOOD]


def test_several_places_of_different_kinds_are_read_in_the_order_of_the_list(tmp_path: Path) -> None:
    bad = {"question": None, "answer": "1"}
    first = write_jsonl(tmp_path / "first.jsonl", [*GOOD[:2], bad])
    datasets.Dataset.from_list([{"question": "p", "answer": "0"}, bad]).to_parquet(tmp_path / "second.parquet")
    last = write_jsonl(tmp_path / "folder" / "train.jsonl", GOOD[2:3]).parent
    config = taskset([first, tmp_path / "second.parquet", last])
    reader = TaskReader(config, max_bad_row_ratio=0.5)
    assert questions(reader, 9) == ["1+1=", "2+2=", "p", "3+3="]
    assert [(Path(row.file).name, row.line) for row in reader.quarantined] == [
        ("first.jsonl", 3),
        ("second.parquet", 2),
    ]
    found = check_taskset(config, "taskset")
    assert {finding.code for finding in found} == {"E4011"} and len(found) == 2
    missing = check_taskset(taskset([first, tmp_path / "nothing.jsonl"]), "taskset")
    assert [finding.code for finding in missing] == ["E4001"]
    moved = TaskReader(taskset([last, first, tmp_path / "second.parquet"]), max_bad_row_ratio=0.5)
    with pytest.raises(CheckpointError, match="E7005"):
        moved.load_state_dict(reader.state_dict())


def test_a_task_carries_classes_arguments_and_its_row(tmp_path: Path) -> None:
    config = taskset(
        jsonl(tmp_path), repeat_times=8, workflow_args={"a": 1}, reward_fn_args={"b": 2}, rollout_args={"top_p": 0.5}
    )
    task = TaskReader(config, batch_size=2, is_eval=True).read()[1]
    assert task.workflow is WORKFLOWS.get("simple_workflow")
    assert task.reward_fn is REWARD_FUNCTIONS.get("math_reward")
    assert (task.repeat_times, task.workflow_args, task.reward_fn_args) == (8, {"a": 1}, {"b": 2})
    assert task.is_eval and task.rollout_args.top_p == 0.5
    assert task.task_desc == "2+2=" and task.truth == "4"
    assert task.raw_task == GOOD[1] and task.index == {"index": 1, "taskset_id": 0}


def test_rows_may_name_their_workflow_and_unknown_names_are_quarantined(tmp_path: Path) -> None:
    """B101."""
    rows = [{**row, "kind": "math_workflow"} for row in GOOD]
    rows[2]["kind"] = "os.system"
    columns = {"prompt_key": "question", "response_key": "answer", "workflow_key": "kind"}
    reader = TaskReader(taskset(write_jsonl(tmp_path / "d.jsonl", rows), format=columns))
    assert {task.workflow for task in reader.tasks()} == {WORKFLOWS.get("math_workflow")}
    assert [(bad.line, bad.code) for bad in reader.quarantined] == [(3, "E4050")]


def test_without_a_default_every_row_must_name_its_workflow(tmp_path: Path) -> None:
    rows = [*({**row, "kind": "math_workflow"} for row in GOOD), GOOD[0]]
    columns = {"prompt_key": "question", "response_key": "answer", "workflow_key": "kind"}
    config = taskset(write_jsonl(tmp_path / "d.jsonl", rows), format=columns, default_workflow_type=None)
    reader = TaskReader(config)
    assert len(reader) == 6 and "names no workflow" in reader.quarantined[0].reason


def test_epochs_wrap_batches_and_then_end(tmp_path: Path) -> None:
    reader = TaskReader(taskset(jsonl(tmp_path), total_epochs=2), batch_size=5)
    assert [len(reader.read()) for _ in range(4)] == [5, 5, 2, 0]
    endless = TaskReader(taskset(jsonl(tmp_path), total_steps=100), batch_size=5)
    assert sum(len(endless.read()) for _ in range(20)) == 100


@pytest.mark.parametrize("selector", ["sequential", "shuffle", "random"])
def test_reading_continues_exactly(tmp_path: Path, selector: str) -> None:
    config = taskset(jsonl(tmp_path), total_epochs=3, data_selector={"selector_type": selector})
    whole = questions(TaskReader(config), 18)
    first = TaskReader(config)
    assert questions(first, 7) == whole[:7]
    second = TaskReader(config)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert questions(second, 100) == whole[7:]
    assert second.read() == []


def test_the_seed_of_the_run_is_used_unless_the_selector_has_one(tmp_path: Path) -> None:
    shuffled = {"selector_type": "shuffle"}
    config = taskset(jsonl(tmp_path), data_selector=shuffled)
    own = taskset(jsonl(tmp_path), data_selector={**shuffled, "seed": 5})
    assert questions(TaskReader(config, seed=5), 6) == questions(TaskReader(own, seed=9), 6)
    assert questions(TaskReader(config, seed=5), 6) != questions(TaskReader(config, seed=9), 6)


def thousand(folder: Path, form: str, answer: str) -> Path:
    """A file of 1000 rows, of which the second has `answer`."""
    rows = [{"question": f"{i} + {i}", "answer": str(2 * i), "image": {"bytes": b"%d" % i}} for i in range(1000)]
    rows[1] |= {"answer": answer}
    if form == "jsonl":
        return write_jsonl(folder / "data.jsonl", [{**row, "image": None} for row in rows])
    datasets.Dataset.from_list(rows).to_parquet(folder / "data.parquet")
    return folder / "data.parquet"


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_one_changed_answer_of_a_thousand_is_refused_on_resume(tmp_path: Path, form: str) -> None:
    """B104."""
    state = TaskReader(taskset(thousand(tmp_path, form, "2"))).state_dict()
    TaskReader(taskset(thousand(tmp_path, form, "2"))).load_state_dict(state)
    reader = TaskReader(taskset(thousand(tmp_path, form, "9")))
    with pytest.raises(CheckpointError, match=r"E7005.*fingerprint"):
        reader.load_state_dict(state)


def test_bytes_in_rows_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    def marked(content: bytes) -> str:
        rows = [{**row, "image": {"bytes": content, "path": None}, "list": [content]} for row in GOOD]
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "data.parquet")
        return TaskReader(taskset(tmp_path / "data.parquet")).fingerprint

    assert marked(b"one") == marked(b"one") != marked(b"two")


def test_tasks_of_a_database_are_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with pytest.raises(DataError, match=r"E4002.*table `task`"):
        TaskReader(taskset(url, storage_type="sql"))
    with Session(engine) as session:
        session.add_all([TaskModel(raw_task=row) for row in GOOD])
        session.commit()
    assert questions(TaskReader(taskset(url, storage_type="sql")), 6) == [row["question"] for row in GOOD]


def test_the_published_function_returns_the_reader(tmp_path: Path) -> None:
    reader = get_buffer_reader(taskset(jsonl(tmp_path)), batch_size=2)
    assert isinstance(reader, TaskReader) and len(reader.read()) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"default_workflow_type": None}, "E1614.*default_workflow_type is not set"),
        ({"default_workflow_type": "math_workflw"}, "did you mean 'math_workflow'"),
        ({"data_selector": {"selector_type": "shufle"}}, "did you mean 'shuffle'"),
    ],
)
def test_unknown_names_are_errors(tmp_path: Path, values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskReader(taskset(jsonl(tmp_path), **values))
