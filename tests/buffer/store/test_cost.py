"""What calls of the store cost on a long history: the plans of their statements, and the work of SQLite for each."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import event

from tests.buffer.store.oracle import BUFFER, RUN, experience, uids
from trinity.buffer.priority import PRIORITY_FUNC
from trinity.buffer.store import ConsumerToken, ExperienceStore, Replay
from trinity.buffer.store.dialect import PAGE_BYTES
from trinity.buffer.store.staleness import StalenessBound

BATCH, CONSUMER, PRODUCER = 64, "trainer", "explorer"
SHORT, LONG = 10, 200
LIVE = ("experience", "step_exp", "train_step", "fate")
BOUND = StalenessBound(max_staleness=1, rollouts=4, rollouts_per_step=4)
Watch = Callable[[str], None]


@pytest.fixture(scope="module")
def history() -> Iterator[ModuleType]:
    """The part of the benchmark that writes long histories."""
    folder = str(Path(__file__).resolve().parents[3] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import scale_rows

        yield scale_rows
    finally:
        sys.path.remove(folder)
        del sys.modules["scale_rows"]


class Meter:
    """Counts the instructions of SQLite's machine, and keeps the plan of each statement, by the call that ran it."""

    def __init__(self, store: ExperienceStore) -> None:
        self.instructions: Counter[str] = Counter()
        self.plans: list[tuple[str, str, str]] = []
        self._call = ""
        engine = store._database._engine
        event.listen(engine, "checkout", lambda connection, *_: connection.set_progress_handler(self._tick, 1))
        event.listen(engine, "before_cursor_execute", self._explain)

    def __call__(self, name: str) -> None:
        self._call = name

    def _tick(self) -> int:
        self.instructions[self._call] += 1
        return 0

    def _explain(self, _: Any, cursor: Any, statement: str, parameters: Any, *__: Any) -> None:
        if statement.split()[0] not in ("SELECT", "UPDATE", "DELETE"):
            return
        call, self._call = self._call, "explain"
        one = parameters[0] if isinstance(parameters, list) else parameters
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", one).fetchall()
        self.plans += [(call, statement, line[-1]) for line in plan]
        self._call = call


def poll(store: ExperienceStore, token: ConsumerToken) -> None:
    """Ask for more than there is, as a trainer that waits does."""
    assert store._try_read(token, BATCH, is_last=False, trained_version=10**6) is None


def add(store: ExperienceStore, step: int, num: int) -> None:
    rows = [experience(step, task, version=step) for task in range(num)]
    store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=step)


def use_as_queue(url: str, steps: int) -> Meter:
    """Make every call that explorer and trainer make in a training step, and resume."""
    with ExperienceStore(url, capacity=1000) as store:
        meter = Meter(store)
        meter("resume")
        dead = store.open_consumer(BUFFER, "dead", run=RUN, cut=0)
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=steps)
        meter("append")
        add(store, steps + 1, 4)
        store.claim(dead, 1, lease_s=-1.0)
        meter("poll")
        poll(store, token)
        meter("enter_batch")
        store.enter_batch(BUFFER, PRODUCER, run=RUN, version=steps, bound=BOUND)
        meter("wait_for_room")
        assert store.wait_for_room(BUFFER, PRODUCER, run=RUN, timeout_s=0)
        for _ in range(2):
            meter("resume")
            token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=steps)
            meter("claim")
            first = uids(store.claim(token, 2))
            rest = uids(store._try_read(token, 2, is_last=True, trained_version=10**6).experiences)
            assert len(first) == len(rest) == 2
            meter("commit")
            store.commit_step(token, steps + 1, first)
            meter("drop")
            store.drop(token, rest[:1], "stale")
            store.release(token, rest[1:])
        meter("prune")
        assert store.prune(token, steps + 2) == 3
        meter("step_uids")
        assert store.step_uids(token, steps + 1) == first
        meter("resume")
        store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=steps + 2)
    return meter


def use_as_replay(url: str, steps: int) -> Meter:
    """Make the calls of a trainer whose experiences are used again."""
    replay = Replay(PRIORITY_FUNC.get("linear_decay")(), cooldown_s=1e6, capacity=5)
    with ExperienceStore(url, replay=replay, clock=lambda: 1e9) as store:
        meter = Meter(store)
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=steps + 2)
        add(store, steps + 3, 8)
        meter("replay poll")
        poll(store, token)
        meter("replay claim")
        batch = store._try_read(token, 2, is_last=False, trained_version=10**6)
        assert (len(batch.experiences), batch.evicted) == (2, 4)
        meter("replay commit")
        store.commit_step(token, steps + 3, uids(batch.experiences))
        meter("replay poll")
        poll(store, token)
        meter("replay claim")
        store.claim(token, 1, whole_rollouts=True)
        meter("replay prune")
        assert store.prune(token, steps + 3) == 4
    return meter


def make_indexes_anew(url: str, *, reverse: bool) -> None:
    """Make the indexes in another order: of two that seem equally good SQLite takes the one that was made last."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        made = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        for name, statement in sorted(made.fetchall(), reverse=reverse):
            database.execute(f"DROP INDEX {name}")
            database.execute(statement)
    database.close()


@pytest.fixture(scope="module", params=[False, True])
def meters(
    request: pytest.FixtureRequest, history: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[Meter]]:
    """All calls on a short and on a long history, which holds the same experiences that are still of use."""
    found = {}
    for steps in (SHORT, LONG):
        url = f"sqlite:///{tmp_path_factory.mktemp('cost')}/experience.db"
        assert history.fill(url, rows=steps * BATCH, place={"run": RUN, "stage": "", "buffer": BUFFER}) == steps
        make_indexes_anew(url, reverse=request.param)
        found[steps] = [use_as_queue(url, steps), use_as_replay(url, steps)]
    return found


def test_no_call_works_more_when_the_history_is_longer(meters: dict[int, list[Meter]]) -> None:
    short, long = (sum((meter.instructions for meter in meters[steps]), Counter()) for steps in (SHORT, LONG))
    assert {"poll", "claim", "prune", "replay poll", "replay claim", "replay prune"} <= set(short)
    assert {name: (short[name], n) for name, n in long.items() if n > 1.1 * short[name] + 50} == {}


def test_every_statement_searches_an_index_and_none_by_its_owner_alone(meters: dict[int, list[Meter]]) -> None:
    plans = {plan for steps in (SHORT, LONG) for meter in meters[steps] for plan in meter.plans}
    assert any("ix_experience_queue" in line for *_, line in plans)
    scope = r"\(run=\? AND stage=\? AND buffer=\?( AND consumer=\?)?\)"
    loose = rf"SCAN ({'|'.join(LIVE)})\b|SEARCH ({'|'.join(LIVE)}) .*{scope}$"
    # Of a consumer's steps the last one is asked for, which is at the end of the index.
    is_last = r"SELECT (\(SELECT )?max\(train_step.step\)|SELECT train_step.step .*DESC\s+LIMIT"
    assert [plan for plan in plans if re.match(loose, plan[2]) and not re.match(is_last, plan[1], re.S)] == []


def test_a_database_of_an_older_program_gets_the_indexes_when_it_is_opened(history: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "experience.db"
    with sqlite3.connect(file) as old:
        old.executescript((Path(__file__).parent / "version_0_1.sql").read_text())
    old.close()
    url = f"sqlite:///{file}"
    with ExperienceStore(url) as store:
        before = "5 issued = 1 trained + 1 stale + 3 waiting"
        assert str(store.fates("exp", run="run")) == before
        assert store.counts("exp", "run") == {"ready": 2, "claimed": 1, "trained": 1, "dropped": {"stale": 1}}
        token = store.open_consumer("exp", "trainer", run="run", cut=1)
        assert store.step_uids(token, 1) == ["1/0/0/0/"]
        assert [one.tokens.tolist() for one in store.claim(token, 9)] == [[1, task, 0, 7] for task in range(1, 5)]

    def indexes(path: Path) -> set[tuple[str, str]]:
        with sqlite3.connect(path) as connection:
            rows = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql NOT NULL"
            ).fetchall()
        connection.close()
        return set(rows)

    ExperienceStore(f"sqlite:///{tmp_path}/new.db").open().close()
    assert indexes(file) == indexes(tmp_path / "new.db")
    assert {"ix_experience_queue", "ix_experience_held"} <= {name for name, _ in indexes(file)}


def test_a_new_database_has_large_pages_and_one_with_other_pages_is_continued(tmp_path: Path) -> None:
    (tmp_path / "old.db").touch()
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.execute("PRAGMA page_size=4096")
        connection.execute("VACUUM")
    for name, number in (("new.db", PAGE_BYTES), ("old.db", 4096)):
        for step in (1, 2):
            with ExperienceStore(f"sqlite:///{tmp_path / name}") as store:
                store.open_producer(BUFFER, PRODUCER, run=RUN)
                add(store, step, BATCH)
                token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=step - 1)
                store.commit_step(token, step, uids(store.claim(token, BATCH)))
                assert store.counts(BUFFER, RUN)["trained"] == step * BATCH
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            assert connection.execute("PRAGMA page_size").fetchone() == (number,)
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
