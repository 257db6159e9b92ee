"""Every workflow with an environment, in one run of two steps with a tiny model."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from tests.common.workflows.envs.conftest import STAND_INS
from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model
from trinity.common.workflows.envs.email_searcher.prepare_data import write_database


def _game(folder: Path) -> dict[str, Any]:
    (folder / "game.tw-pddl").write_text(json.dumps({"intro": "A room.", "plan": ["look around"]}))
    return {"question": "game.tw-pddl"}


def _mails(folder: Path) -> dict[str, Any]:
    mail = {"message_id": "m", "subject": "s", "from": "a@x", "to": ["b@x"], "date": "2001-01-01 00:00:00", "body": "b"}
    write_database([mail], folder / "mails.db")
    row = {"question": "Who?", "answer": "a", "message_ids": ["m"], "inbox_address": "b@x", "query_date": "2001-01-02"}
    return row


def _database(folder: Path) -> dict[str, Any]:
    connection = sqlite3.connect(folder / "zoo.sqlite")
    connection.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    connection.close()
    return {"query": "How many?", "gold": "SELECT count(*) FROM t", "db": "zoo"}


# Row, and a metric that only this workflow has, with its most.
RUNS: dict[str, tuple[Any, str, float]] = {
    "frozen_lake_workflow": (lambda _: {"size": 3, "seed": 1}, "env_steps", 2),
    "sudoku_workflow": (lambda _: {"seed": 1}, "sudoku_steps", 2),
    "intercode_sql_workflow": (_database, "action_executed", 1),
    "email_search_workflow": (_mails, "actual_turns", 2),
    "alfworld_workflow": (_game, "env_done", 1),
    "step_wise_alfworld_workflow": (_game, "actual_env_steps", 2),
    "RAFT_alfworld_workflow": (_game, "steps", 2),
    "RAFT_reflect_alfworld_workflow": (_game, "second_steps", 2),
    "sciworld_workflow": (lambda _: {"question": json.dumps({"task_name": "boil", "var_num": 0})}, "golden_rounds", 3),
    "webshop_workflow": (lambda _: {"question": "0"}, "session_id", 0),
}
ARGS = {
    "max_env_steps": 2, "agent_max_steps": 2, "max_steps": 2, "max_turns": 2, "database_dir": ".",
    "database_path": "mails.db", "size": 4,
}  # fmt: skip


def _end_soon(model: Path) -> None:
    """Let answers end after a few characters, not at their longest length, so that the environment is asked."""
    config = {"eos_token_id": [1, *range(3, 60)], "pad_token_id": 0}
    (model / "generation_config.json").write_text(json.dumps(config))


def test_a_run_plays_and_trains(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    tiny_model(tmp_path / "model", "llama", seed=1, scale=3.0, max_position_embeddings=4096)
    _end_soon(tmp_path / "model")
    run.write_rows(2 * [{"question": "0", "how": name} | RUNS[name][0](tmp_path) for name in RUNS])
    run.change(
        model__max_model_len=3000,
        model__max_prompt_tokens=2900,
        model__max_response_tokens=24,
        buffer__batch_size=len(RUNS),
        buffer__explorer_input__default_reward_fn_type=None,
        buffer__explorer_input__default_workflow_type="frozen_lake_workflow",
        buffer__explorer_input__taskset__format={"prompt_key": "question", "workflow_key": "how"},
        buffer__explorer_input__taskset__workflow_args=ARGS,
    )
    path = os.pathsep.join([str(STAND_INS), os.environ.get("PYTHONPATH", "")])
    end = run.finish(environment={"PYTHONPATH": path})
    assert end.status == 0, end.output[-3000:]
    lines = run.lines("explorer")[:2]
    assert [line["rollout/finished_task_count"] for line in lines] == 2 * [len(RUNS)]
    assert not any(line[f"rollout/{what}_run_count"] for line in lines for what in ("failed", "timeout", "rejected"))
    for _, metric, most in RUNS.values():
        assert all(line[f"rollout/{metric}/min"] >= 0 and line[f"rollout/{metric}/max"] <= most for line in lines), (
            metric
        )
    assert len(run.lines("trainer")) >= 2
