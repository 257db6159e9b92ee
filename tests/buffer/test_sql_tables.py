"""Demonstrations in a database: conversations and stored experiences, what is said of others, exact resume."""

from __future__ import annotations

import copy
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from transformers import PreTrainedTokenizerFast

from tests.postgresql import Server
from tests.tiny import tiny_tokenizer
from trinity.buffer import get_buffer_reader
from trinity.buffer.dataset_reader import DatasetReader
from trinity.buffer.sql_tables import load_sql_table
from trinity.buffer.store import ExperienceStore
from trinity.buffer.task_reader import TaskReader
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.storage import StorageConfig
from trinity.common.errors import CheckpointError, DataError
from trinity.common.experience import EID, Experience
from trinity.common.schema.sql_schema import Base, SFTDataModel, TaskModel
from trinity.common.workflows import Task
from trinity.preflight.data import check_taskset

MESSAGES = {"prompt_type": "messages", "messages_key": "message_list"}
TEXTS = {"prompt_key": "question", "response_key": "answer"}


def engine_of(url: str) -> Engine:
    return create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def write_conversations(file: Path, number: int, *, begin: int = 0) -> str:
    """Add rows to the table `sft` of a database; return its URL."""
    engine = create_engine(f"sqlite:///{file}")
    Base.metadata.create_all(engine, tables=[SFTDataModel.__table__])
    with Session(engine) as session:
        numbers = range(begin, begin + number)
        session.add_all(SFTDataModel(message_list=chat(f"{a}+1=", str(a + 1))) for a in numbers)
        session.commit()
    return f"sqlite:///{file}"


def write_table(file: Path, name: str, key: str, rows: list[tuple[Any, ...]]) -> str:
    """Make a table of three columns as another program would; return the URL of its database."""
    with sqlite3.connect(file) as connection:
        connection.execute(f'CREATE TABLE "{name}" (number {key}, question TEXT, answer TEXT)')
        connection.executemany(f'INSERT INTO "{name}" VALUES (?, ?, ?)', rows)
    return f"sqlite:///{file}"


def recorded(tokenizer: PreTrainedTokenizerFast, step: int, run: int, **changes: Any) -> Experience:
    """Return an experience as an engine makes it: tokens, and the text that they read."""
    prompt, answer = f"{step}+{run}=", str(step + run)
    tokens = [*tokenizer(prompt)["input_ids"], *tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
    values: dict[str, Any] = {
        "eid": EID(step, 0, run), "tokens": tokens, "prompt_length": len(prompt), "reward": 1.0,
        "prompt_text": prompt, "response_text": answer, "info": {"model_version": 0},
    }  # fmt: skip
    return Experience(**values | changes)


def store_experiences(
    file: Path, experiences: list[Experience], *, buffer: str = "experts", run: str = "p/expert", close: bool = True
) -> str:
    """Append explore steps to a store, one per batch in the experiences' ids; return its URL."""
    with ExperienceStore(f"sqlite:///{file}") as store:
        store.open_producer(buffer, "explorer", run=run)
        for step in sorted({int(exp.eid.batch) for exp in experiences}):
            rows = [exp for exp in experiences if exp.eid.batch == step]
            store.append(buffer, rows, run=run, producer="explorer", explore_step=step)
        if close:
            store.close_producer(buffer, "explorer", run=run)
    return f"sqlite:///{file}"


def reader_of(url: str, tokenizer: PreTrainedTokenizerFast, schema: str, **options: Any) -> DatasetReader:
    columns = options.pop("columns", {})
    columns = columns if schema == "sft" else {}
    config = ExperienceBufferConfig(name="experts", storage_type="sql", path=url, format=columns, schema_type=schema)
    return DatasetReader(config, tokenizer=tokenizer, schema=schema, **{"seed": 3, "total_epochs": 0} | options)


def texts(experiences: list[Experience]) -> list[str]:
    return [f"{exp.prompt_text}{exp.response_text}" for exp in experiences]


# ------------------------------------------------------------------------------------ conversations
def test_conversations_in_a_database_are_those_of_a_file(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    url = write_conversations(tmp_path / "sft.db", 5)
    file = tmp_path / "sft.jsonl"
    file.write_text("".join(json.dumps({"message_list": chat(f"{a}+1=", str(a + 1))}) + "\n" for a in range(5)))
    plain = ExperienceBufferConfig(name="experts", storage_type="file", path=str(file), format=MESSAGES)
    same = DatasetReader(plain, tokenizer=tokenizer, seed=3, total_epochs=0).read(13)
    found = reader_of(url, tokenizer, "sft", columns=MESSAGES).read(13)
    assert [exp.serialize() for exp in found] == [exp.serialize() for exp in same] and len(set(texts(found))) == 5


@pytest.mark.parametrize("key", ["INTEGER PRIMARY KEY", "INTEGER"])
def test_the_table_of_the_buffers_name_comes_first_in_the_order_of_its_key(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, key: str
) -> None:
    write_conversations(tmp_path / "sft.db", 2)
    url = write_table(tmp_path / "sft.db", "experts", key, [(7, "7=", "7"), (3, "3=", "3"), (5, "5=", "5")])
    found = reader_of(url, tokenizer, "sft", columns=TEXTS, shuffle=False).read(3)
    order = "357" if "PRIMARY" in key else "735"  # without a key the order of arrival
    assert [exp.prompt_text[0] for exp in found] == list(order)


def test_a_table_that_grew_gives_the_rows_that_it_had(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    for schema in ("sft", "experience"):
        file = tmp_path / f"{schema}.db"
        if schema == "sft":
            url = write_conversations(file, 5)
        else:
            url = store_experiences(file, [recorded(tokenizer, 1, run) for run in range(5)], close=False)
        whole = reader_of(url, tokenizer, schema, columns=MESSAGES)
        whole.read(8)
        state = json.loads(json.dumps(whole.state_dict()))
        following = texts(whole.read(12))
        if schema == "sft":
            write_conversations(file, 3, begin=5)
        else:
            store_experiences(file, [recorded(tokenizer, 2, run) for run in range(5)])
        again = reader_of(url, tokenizer, schema, columns=MESSAGES)
        assert len(again) > 5
        again.load_state_dict(state)
        assert texts(again.read(12)) == following and len(set(following)) == 5
    with sqlite3.connect(tmp_path / "sft.db") as connection:
        connection.execute("UPDATE sft SET message_list = '[]' WHERE id = 2")
    with pytest.raises(CheckpointError, match="changed since the checkpoint") as caught:
        reader_of(f"sqlite:///{tmp_path / 'sft.db'}", tokenizer, "sft", columns=MESSAGES).load_state_dict(state)
    assert caught.value.code == "E7005"


# -------------------------------------------------------------------------------------- experiences
def test_stored_experiences_are_imitated_token_by_token(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    made = [recorded(tokenizer, step, run) for step in (1, 2) for run in range(3)]
    made[4].action_mask[0] = False  # what a tool said
    url = store_experiences(tmp_path / "log.db", made[:3])
    store_experiences(tmp_path / "log.db", made[3:], run="p/another")
    store_experiences(tmp_path / "log.db", [recorded(tokenizer, 9, 9)], buffer="others")
    before = sqlite3.connect(tmp_path / "log.db").execute("SELECT * FROM experience").fetchall()
    found = reader_of(url, tokenizer, "experience", shuffle=False).read(7)
    assert [exp.tokens.tolist() for exp in found] == [exp.tokens.tolist() for exp in [*made, made[0]]]
    assert [exp.action_mask.tolist() for exp in found[:6]] == [exp.action_mask.tolist() for exp in made]
    assert [exp.info["epoch"] for exp in found] == [1] * 6 + [2] and len({exp.eid.uid for exp in found}) == 7
    assert all(exp.reward is None and exp.logprobs is None for exp in found)
    after = sqlite3.connect(tmp_path / "log.db").execute("SELECT * FROM experience").fetchall()
    assert after == before, "nothing is written: another run may read the same rows"


def test_experiences_of_another_tokenizer_are_refused_unless_one_agrees(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    other = [recorded(tokenizer, 1, run, response_text="the answer is seven") for run in range(4)]
    url = store_experiences(tmp_path / "other.db", other)
    with pytest.raises(
        DataError, match=r"buffer 'experts': .* another tokenizer: .*'the answer is seven' reads '1'"
    ) as e:
        reader_of(url, tokenizer, "experience")
    assert e.value.code == "E4026"
    url = store_experiences(tmp_path / "own.db", [*other[:3], recorded(tokenizer, 1, 5)])
    assert len(reader_of(url, tokenizer, "experience")) == 4
    url = store_experiences(tmp_path / "wide.db", [recorded(tokenizer, 1, 0, tokens=[1, 2, 99_999], prompt_length=1)])
    with pytest.raises(DataError, match="another tokenizer"):
        reader_of(url, tokenizer, "experience")


def test_what_cannot_be_imitated_is_left_out_and_said(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    rows = [recorded(tokenizer, 1, run) for run in range(4)]
    rows[2].action_mask[:] = False
    url = store_experiences(tmp_path / "log.db", rows)
    reader = reader_of(url, tokenizer, "experience")
    assert {text[0] for text in texts(reader.read(9))} == {"1"} and len(reader.quarantined) == 1
    assert reader.quarantined[0].code == "E4025" and "no token of it was produced" in reader.quarantined[0].reason
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("DELETE FROM experience_blob")
    with pytest.raises(DataError, match=r"experience_bytes: is null: the payload was removed") as caught:
        reader_of(url, tokenizer, "experience")
    assert caught.value.code == "E5104"


@pytest.mark.parametrize(
    ("schema", "made", "code", "message"),
    [
        ("experience", "nothing", "E4001", r"there is no database /.*absent\.db"),
        ("sft", "text", "E4001", r"cannot read sqlite:///.*: file is not a database"),
        ("experience", "conversations", "E4061", r"no table `experience`.* it has: sft; write `schema_type: sft`"),
        ("experience", "log", "E4061", r"of a buffer 'experts'; it has those of: others \(1\); write the name"),
        ("sft", "log", "E4061", r"neither a table `experts` nor a table `sft`; it has: .*`schema_type: experience`"),
        ("experience", "foreign", "E4062", r"not made by this program: it has no column buffer, experience_bytes, uid"),
        ("sft", "empty", "E4002", r"table `sft` of .* has no rows"),
        ("sft", "foreign", "E4004", r"messages_key is 'message_list', which is not a column"),
    ],
)  # fmt: skip
def test_what_is_no_table_of_demonstrations_is_said_by_run_and_by_validate(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, schema: str, made: str, code: str, message: str
) -> None:
    file = tmp_path / "absent.db"
    if made == "text":
        file.write_text("this is a text and no database at all\n" * 99)
    elif made in ("conversations", "empty"):
        write_conversations(file, 2 if made == "conversations" else 0)
    elif made == "log":
        store_experiences(file, [recorded(tokenizer, 1, 0)], buffer="others")
    elif made == "foreign":
        write_table(file, "experience" if schema == "experience" else "sft", "INTEGER", [(1, "1=", "1")])
    if made == "foreign" and schema == "experience":
        with sqlite3.connect(file) as connection:
            connection.execute("ALTER TABLE experience RENAME COLUMN number TO id")
    url = f"sqlite:///{file}"
    with pytest.raises(DataError, match=message) as caught:
        reader_of(url, tokenizer, schema, columns=MESSAGES)
    assert caught.value.code == code
    columns = MESSAGES if schema == "sft" else {}
    config = ExperienceBufferConfig(name="experts", storage_type="sql", path=url, format=columns)
    (finding,) = check_taskset(config, "here", schema=schema)
    assert (finding.code, finding.key) == (code, "here.path") and finding.message.startswith("here: ")
    assert file.exists() == (made != "nothing"), "looking makes no database"


@pytest.mark.difference("An auxiliary buffer with `storage_type: sql`")
def test_a_reader_by_configuration_reads_a_table_of_conversations(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    url = write_conversations(tmp_path / "sft.db", 2)
    config = ExperienceBufferConfig(name="experts", storage_type="sql", path=url, format=MESSAGES, schema_type="sft")
    assert len(get_buffer_reader(config, tokenizer=tokenizer).read(2)) == 2


def task_reader(url: str, **more: Any) -> TaskReader:
    storage = {"name": "gsm8k", "storage_type": "sql", "schema_type": "task", "path": url, "format": TEXTS}
    config = StorageConfig(**storage | {"default_workflow_type": "math_workflow"} | more.pop("keys", {}))
    found = get_buffer_reader(config, batch_size=2, **more)
    assert isinstance(found, TaskReader)
    return found


def questions(tasks: list[Task]) -> list[str]:
    return [task.raw_task["question"] for task in tasks]


@pytest.mark.parametrize("name", ["gsm8k", "task"])
def test_tasks_of_a_table_are_read_in_order_and_continued_exactly(store_url: str, name: str) -> None:
    """Of a table of the taskset's name, or of the one that is called `task`, on both databases."""
    engine = engine_of(store_url)
    with engine.begin() as connection:
        connection.execute(text(f"create table {name} (number integer primary key, question text, answer text)"))
        for number in (3, 1, 4, 2):
            values = {"n": number, "q": f"{number}+1=", "a": str(number + 1)}
            connection.execute(text(f"insert into {name} values (:n, :q, :a)"), values)
    more: Any = {"total_epochs": 3, "keys": {"data_selector": {"selector_type": "shuffle", "seed": 5}}}
    reader = task_reader(store_url)
    assert questions(reader.read()) == ["1+1=", "2+1="] and reader.read()[1].truth == "5"
    whole = task_reader(store_url, **copy.deepcopy(more))
    order = [questions(whole.read()) for _ in range(6)]
    assert sorted(order[0] + order[1]) == ["1+1=", "2+1=", "3+1=", "4+1="] and whole.read() == []
    begun = task_reader(store_url, **copy.deepcopy(more))
    for _ in range(3):
        begun.read()
    resumed = task_reader(store_url, **copy.deepcopy(more))
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert [questions(resumed.read()) for _ in range(3)] == order[3:]
    with engine.begin() as connection:
        connection.execute(text(f"delete from {name} where number = 2"))
    with pytest.raises(CheckpointError, match="E7005.*taskset 'gsm8k' changed since the checkpoint"):
        task_reader(store_url, **copy.deepcopy(more)).load_state_dict(begun.state_dict())
    engine.dispose()


def test_the_column_raw_task_holds_whole_tasks_and_bad_ones_are_set_aside(store_url: str) -> None:
    engine = engine_of(store_url)
    Base.metadata.create_all(engine, tables=[TaskModel.__table__])
    with Session(engine) as session:
        session.add(TaskModel(raw_task={"question": "1+1=", "answer": "2"}))
        session.add(TaskModel(raw_task=[1, 2]))  # type: ignore[arg-type]
        session.add_all(TaskModel(raw_task={"question": f"{a}+2=", "answer": str(a + 2)}) for a in range(3))
        session.commit()
    reader = task_reader(store_url, max_bad_row_ratio=0.5)
    assert [questions(reader.read()) for _ in range(2)] == [["1+1=", "0+2="], ["1+2=", "2+2="]]
    assert [(row.line, row.key, row.reason) for row in reader.quarantined] == [(2, "raw_task", "must be a JSON object")]
    engine.dispose()


def test_a_server_that_starts_again_is_waited_for(postgresql: Server) -> None:
    url = postgresql.database()
    with engine_of(url).begin() as connection:
        connection.execute(text("CREATE TABLE task (number INTEGER PRIMARY KEY, question TEXT)"))
        connection.execute(text("INSERT INTO task VALUES (1, '1+1=')"))
    with starting_again(postgresql):
        assert load_sql_table(url, name="task", schema="task").row(0).values["question"] == "1+1="


def test_a_server_that_starts_again_is_waited_for_by_a_reader_of_payloads(
    tokenizer: PreTrainedTokenizerFast, postgresql: Server
) -> None:
    url = postgresql.database()
    made = [recorded(tokenizer, 1, run) for run in range(3)]
    with ExperienceStore(url) as store:
        store.append("experts", made, run="p/run", producer="explorer", explore_step=1)
    reader = reader_of(url, tokenizer, "experience", shuffle=False)
    with starting_again(postgresql):
        assert [exp.tokens.tolist() for exp in reader.read(3)] == [exp.tokens.tolist() for exp in made]


@contextmanager
def starting_again(server: Server) -> Iterator[None]:
    """Stop the server, and start it a second later."""
    server.stop()
    start = threading.Timer(1.0, server.start)
    start.start()
    try:
        yield
    finally:
        start.join()
