"""A run whose tasks and experiences are in PostgreSQL, in parts that are killed, on a server that restarts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.e2e.parts import Parts
from tests.postgresql import Server
from tests.prepared import DEADLINE_S
from trinity.launch.samples import fates_of

pytestmark = pytest.mark.slow

NAMES = ("trainer", "explorer", "explorer_new")


class Tables:
    """The tables of a run, asked while its server comes and goes."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)

    def make_tasks(self) -> None:
        """Write the table of tasks."""
        with self._engine.begin() as connection:
            connection.execute(text("create table sums (id serial primary key, question text, answer text)"))
            for a in range(4):
                values = {"question": f"{a}+{a + 1}=", "answer": str(2 * a + 1)}
                connection.execute(text("insert into sums (question, answer) values (:question, :answer)"), values)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none before the tables are there."""
        with self._engine.connect() as connection:
            if connection.scalar(text("select to_regclass('experience')")) is None:
                return []
            return [tuple(row) for row in connection.execute(text(query))]

    def num_steps(self) -> int:
        """Return the committed training steps."""
        return len(self.rows("select step from train_step"))


@pytest.mark.timeout(400)
def test_nothing_is_lost_and_nothing_trained_twice(tmp_path: Path, postgresql: Server) -> None:
    """Two explorers and a trainer: each is killed and started again, and the server restarts three times."""
    url = postgresql.database()
    tables, parts = Tables(url), Parts(tmp_path)
    tables.make_tasks()
    for tree in parts.trees.values():
        tree["buffer"]["trainer_input"]["experience_buffer"]["path"] = url
        tree["buffer"]["explorer_input"]["taskset"] |= {"name": "sums", "storage_type": "sql", "path": url}
        tree["synchronizer"]["sync_timeout"] = 200
    alive: dict[str, subprocess.Popen[str]] = {}

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            for name, process in alive.items():
                if process.poll() not in (None, 0):
                    pytest.fail(f"{name} ended with status {process.poll()}:\n{parts.output(name)}")
            assert time.monotonic() < deadline, {name: parts.output(name)[-3000:] for name in alive}
            time.sleep(0.05)

    def restart(*killed: str) -> None:
        """Kill parts and restart the server, which the others see; then start the parts again."""
        for name in killed:
            alive[name].kill()
            alive[name].wait(DEADLINE_S)
        postgresql.restart()
        for name in killed:
            alive[name] = parts.start(name)

    try:
        for name in NAMES:
            alive[name] = parts.start(name)
        until(lambda: tables.num_steps() >= 2)
        restart("trainer")
        until(lambda: tables.num_steps() >= 4)
        restart("explorer")
        until(lambda: tables.num_steps() >= 6)
        restart("explorer_new", "trainer")
        until(lambda: all(process.poll() == 0 for process in alive.values()))
    finally:
        for process in alive.values():
            process.kill()
            process.communicate(timeout=60)
    made = tables.rows("select producer, count(*), count(distinct uid), max(explore_step) from experience group by 1")
    assert sorted(made) == [("explorer", 32, 32, 8), ("explorer_new", 32, 32, 8)]
    assert tables.rows("select state, use_count, count(*) from experience group by 1, 2") == [("trained", 1, 64)]
    assert tables.rows("select count(*), count(distinct uid) from step_exp") == [(64, 64)]
    assert tables.rows("select step from train_step order by 1") == [(step,) for step in range(1, 17)]
    assert [str(found) for found in fates_of(parts.job, url=url).values()] == ["64 issued = 64 trained + 0 waiting"]
    assert "rollouts: 64 issued = 64 trained + 0 waiting" in parts.output("trainer")
    assert not (parts.job / "buffer" / "experience.db").exists()
