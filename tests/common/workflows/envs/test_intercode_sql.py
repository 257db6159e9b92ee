"""Questions over a real SQLite database, answered by a scripted policy."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.common.workflows.envs.policy import Script, attempt, said
from trinity.common.errors import WorkflowError
from trinity.common.workflows.envs.intercode_sql.database import agreement, orders

GOLD = "SELECT name FROM pets ORDER BY age"


@pytest.fixture
def row(tmp_path: Path) -> dict[str, Any]:
    """A record and its database of four pets."""
    path = tmp_path / "zoo" / "zoo.sqlite"
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE pets (name TEXT, age REAL)")
        connection.executemany("INSERT INTO pets VALUES (?, ?)", [("Ada", 3), ("Bo", 1), ("Cy", 2), ("Di", 9)])
    connection.close()
    return {"query": "Names by age?", "gold": GOLD, "db": "zoo"}


def act(*actions: str) -> Script:
    return Script([f"<think>so</think><action>{action}</action>" for action in actions])


def play(row: dict[str, Any], tmp_path: Path, model: Script, **args: Any) -> Any:
    (made,) = attempt("intercode_sql_workflow", model, row, database_dir=str(tmp_path), **args)
    return made


def test_the_result_of_the_gold_query_gives_one(row: dict[str, Any], tmp_path: Path) -> None:
    model = act("SELECT name, sql FROM sqlite_master;", "SELECT name FROM pets ORDER BY age + 1", "submit")
    made = play(row, tmp_path, model)
    assert made.reward == 1.0 and said(made).count("|") == 3
    assert made.metrics == {
        "env_rounds": 3, "env_done": 1, "env_invalid_actions": 0, "query_idx": 0, "action_executed": 1,
        "final_reward": 1.0,
    }  # fmt: skip
    assert model.asked[0][1]["content"] == "Question: Names by age?\nDatabase: zoo"
    assert model.asked[1][-1]["content"] == "Observation: pets | CREATE TABLE pets (name TEXT, age REAL)"
    assert model.asked[2][-1]["content"] == "Observation: Bo\nCy\nAda\nDi"


@pytest.mark.parametrize(
    ("statement", "reward"),
    [
        ("SELECT name FROM pets WHERE age < 3", 0.5),  # two of four
        ("SELECT name FROM pets ORDER BY age DESC", 0.0),  # no pair in order
        ("SELECT name FROM pets UNION ALL SELECT 'x'", 4 / 5 * 4 / 6),  # Ada, Bo, Cy, Di: four pairs of six
        ("SELECT age FROM pets", 0.0),
    ],
)
def test_a_part_of_the_rows_gives_a_part(row: dict[str, Any], tmp_path: Path, statement: str, reward: float) -> None:
    assert play(row, tmp_path, act(statement, "submit")).reward == pytest.approx(reward)
    assert play(row, tmp_path, act(statement), max_env_steps=1).reward == pytest.approx(reward)
    assert play(row, tmp_path, act(statement), max_env_steps=1, auto_submit=False).reward == 0.0


def test_without_an_order_of_the_gold_query_none_counts() -> None:
    assert agreement([(2,), (1.0,)], [(1,), (2,)], is_ordered=False) == 1.0
    assert agreement([], [], is_ordered=True) == 1.0 and agreement([(1,), (1,)], [(1,)], is_ordered=False) == 0.5
    assert orders("select a from t order\n by b") and not orders("select 'order by', (select 1 order by 1) from t")


@pytest.mark.difference("Databases of `intercode_sql_workflow`")
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM pets", "DROP TABLE pets", "ATTACH 'x.db' AS x", "PRAGMA journal_mode = WAL", "SELECT 1; SELECT 2",
        "SELECT load_extension('x')", "SELECT zeroblob(100000000)", "INSERT INTO pets VALUES (1, 1)", "VACUUM INTO 'y'",
    ],
)  # fmt: skip
def test_a_statement_can_only_read(row: dict[str, Any], tmp_path: Path, statement: str) -> None:
    before = sorted(path.read_bytes() for path in tmp_path.rglob("*.*"))
    model = act(statement, "submit")
    made = play(row, tmp_path, model)
    assert (made.reward, made.metrics["env_invalid_actions"]) == (0.0, 1)
    assert model.asked[1][-1]["content"].startswith("Observation: error: ")
    assert sorted(path.read_bytes() for path in tmp_path.rglob("*.*")) == before


def test_time_and_rows_are_limited(row: dict[str, Any], tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n"
    model = act(endless.format("count(*)"), endless.format("i"), "submit")
    started = time.monotonic()
    made = play(row, tmp_path, model, timeout_s=0.2, max_rows=5, max_observation_chars=6)
    assert time.monotonic() - started < 5
    assert model.asked[1][-1]["content"] == "Observation: error: stopped after 0.2 s"
    assert model.asked[2][-1]["content"] == "Observation: 1\n2\n3\n\n... (more is not shown)"
    assert made.reward == 0.0


def test_what_is_no_action_is_told(row: dict[str, Any], tmp_path: Path) -> None:
    model = Script(["SELECT 1", "<action> </action>", "<action>SELECT name FROM pets ORDER BY age</action>"])
    made = play(row, tmp_path, model, max_env_steps=3)
    assert (made.reward, made.metrics["env_invalid_actions"], made.metrics["env_done"]) == (1.0, 2, 0)
    assert model.asked[1][-1]["content"].startswith("There is no action.")
    cut = Script(["<action>SELECT name FROM pets ORDER BY age</action>", "<action>sub"], cut=1)
    made = play(row, tmp_path, cut)
    assert (made.reward, made.truncate_status) == (1.0, "response_truncated")


def test_records_may_be_in_a_file(row: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "records.json").write_text(json.dumps([{}, {**row, "extra": {"db": "zoo"}, "db": None}]))
    data = str(tmp_path / "records.json")
    made = play({"prompt": "1"}, tmp_path, act(GOLD, "submit"), data_path=data)
    assert (made.reward, made.metrics["query_idx"]) == (1.0, 1)


@pytest.mark.difference("An environment that fails")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gold": "SELECT no_such FROM pets"}, "the gold query fails: no such column"),
        ({"gold": "SELECT 1 FROM pets, pets, pets, pets, pets, pets"}, "more than max_rows = 1000 rows"),
        ({"db": "barn"}, "there is no database"),
        ({"db": ""}, "workflow_args.database_dir"),
        ({"gold": None}, "data_path is not set"),
    ],
)
def test_a_task_that_cannot_be_is_a_failure(row: dict[str, Any], tmp_path: Path, change: dict, says: str) -> None:
    with pytest.raises(WorkflowError, match=f"E5132.*({says})"):
        play(row | change, tmp_path, act())
    with pytest.raises(WorkflowError, match="data_path is not set"):
        play({"prompt": "0"}, tmp_path, act())
