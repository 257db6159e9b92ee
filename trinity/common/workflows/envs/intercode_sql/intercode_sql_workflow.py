"""The workflow of InterCode's SQL tasks over SQLite databases.

Source: Yang et al. 2023, arXiv:2306.14898.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trinity.common.workflows.envs.actions import last_action
from trinity.common.workflows.envs.episode import EpisodeWorkflow, Game, Reply
from trinity.common.workflows.envs.intercode_sql.database import ReadOnlyDatabase, Row, agreement, orders
from trinity.common.workflows.registry import WORKFLOWS

SYSTEM_PROMPT = """\
You answer a question about an SQLite database with SQL. In every turn, think between <think> and </think>, then write \
one action between <action> and </action>. An action is one SELECT statement, whose result you are shown, or the word \
submit, which hands in the result of your last statement as the answer. The tables are listed by \
<action>SELECT name, sql FROM sqlite_master</action>"""
SUBMIT = "submit"


class SqlGame(Game):
    """One question.

    Args:
        database: where statements are executed; it is closed with the game.
        record: `query` and `gold`.
        query_idx: number of the record.
        auto_submit: the last result is handed in after the last step.
        max_chars: longest result that is shown, in characters.
    """

    def __init__(
        self,
        database: ReadOnlyDatabase,
        record: Mapping[str, Any],
        *,
        query_idx: int,
        auto_submit: bool,
        max_chars: int,
    ) -> None:
        self.database, self.record, self.query_idx = database, record, query_idx
        self.auto_submit, self.max_chars = auto_submit, max_chars
        self.rows: list[Row] | None = None
        self.is_executed = False

    def begin(self) -> str:
        """Execute the gold query; return the question.

        Raises:
            ValueError: the gold query fails, or gives more rows than are compared.
        """
        try:
            self.gold = self.database.rows(self.record["gold"])
        except sqlite3.Error as error:
            raise ValueError(f"the gold query fails: {error}: {self.record['gold']}") from error
        if len(self.gold) > self.database.max_rows:
            raise ValueError(f"the gold query has more than max_rows = {self.database.max_rows} rows; raise it")
        return f"Question: {self.record['query']}\nDatabase: {self.record.get('db', '')}"

    def answer(self, text: str) -> Reply:
        """Execute a statement, or compare the last result."""
        action = last_action(text)
        self.is_executed = bool(action)
        if not action:
            said = "There is no action. Write one SELECT statement, or submit, between <action> and </action>."
            return Reply(said, is_valid=False)
        if action.rstrip(";").strip().lower() == SUBMIT:
            self._submit()
            return Reply("", is_done=True)
        try:
            self.rows = self.database.rows(action)
        except (sqlite3.Error, sqlite3.Warning) as error:
            self.rows, self.is_executed = None, False
            return Reply(f"Observation: error: {error}", is_valid=False)
        return Reply(f"Observation: {self._shown(self.rows)}")

    def end(self, is_done: bool) -> None:
        """Hand in the last result if the steps are used up."""
        if self.auto_submit and not is_done:
            self._submit()

    def metrics(self) -> dict[str, float]:
        """Return the record's number and the reward, under published names."""
        return {"query_idx": self.query_idx, "action_executed": int(self.is_executed), "final_reward": self.reward}

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def _submit(self) -> None:
        if self.rows is not None:
            self.reward = agreement(self.rows, self.gold, is_ordered=orders(self.record["gold"]))

    def _shown(self, rows: list[Row]) -> str:
        most = self.database.max_rows
        text = "\n".join(" | ".join(map(str, row)) for row in rows[:most]) or "no rows"
        cut = len(text) > self.max_chars or len(rows) > most
        return text[: self.max_chars] + ("\n... (more is not shown)" if cut else "")


@WORKFLOWS.register_module("intercode_sql_workflow")
class InterCodeSQLWorkflow(EpisodeWorkflow):
    """Questions about databases, answered by SQL over several turns.

    The row has `query`, `gold` and `db`, or the prompt column is the number of such a record in the JSON list at
    `data_path`. The database is the row's `db_path`, or `<db>.sqlite` or `<db>/<db>.sqlite` in `database_dir`.
    The reward is the agreement of the last result with that of the gold query.
    """

    arguments = {
        "data_path": None, "database_dir": None, "max_env_steps": 10, "auto_submit": True, "timeout_s": 5.0,
        "max_rows": 1000, "max_observation_chars": 2000,
    }  # fmt: skip
    ranges = {
        "data_path": "text", "database_dir": "text", "max_env_steps": "[1, inf]", "timeout_s": "(0, inf)",
        "max_rows": "[1, inf]", "max_observation_chars": "[1, inf]",
    }  # fmt: skip
    system_prompt = SYSTEM_PROMPT

    def open(self) -> Game:
        """Return the question of the row over a connection of its own."""
        given = self.workflow_args
        index, record = self._record()
        return SqlGame(
            ReadOnlyDatabase(
                self._database(record), timeout_s=float(given["timeout_s"]), max_rows=int(given["max_rows"])
            ),
            record,
            query_idx=index,
            auto_submit=bool(given["auto_submit"]),
            max_chars=int(given["max_observation_chars"]),
        )

    def _record(self) -> tuple[int, Mapping[str, Any]]:
        row = self.raw_task
        if row.get("gold") and row.get("query"):
            return int(self.value("query_idx", 0)), row
        path = row.get("data_path") or self.workflow_args.get("data_path")
        if path is None:
            raise ValueError("the row has no `query` and `gold`, and workflow_args.data_path is not set")
        asked = self.task.task_desc
        index = int(self.value("query_idx", 0) if asked is None else asked)
        records = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        if not 0 <= index < len(records):
            raise ValueError(f"{path} has {len(records)} records, there is no number {index}")
        return index, records[index]

    def _database(self, record: Mapping[str, Any]) -> Path:
        if path := self.raw_task.get("db_path"):
            return Path(path).expanduser()
        extra = record.get("extra")
        name = record.get("db") or (extra.get("db") if isinstance(extra, Mapping) else None)
        folder = self.workflow_args.get("database_dir")
        if folder is None or not name:
            raise ValueError("set workflow_args.database_dir and the record's `db`, or the row's `db_path`")
        root = Path(folder).expanduser()
        tried = [root / f"{name}.sqlite", root / name / f"{name}.sqlite", root / f"{name}.db"]
        return next((path for path in tried if path.is_file()), tried[0])
