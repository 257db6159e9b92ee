"""Payloads are read after a claim was committed: what others may do in between."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.buffer.store.oracle import BUFFER, PRODUCER, RUN, experience, open_store, uids
from trinity.buffer.store import ExperienceStore
from trinity.buffer.store import store as module
from trinity.buffer.store.tables import BLOB, SCHEMA_VERSION
from trinity.buffer.store.types import ConsumerToken
from trinity.common.errors import DataError, StoreError


@pytest.fixture
def store(store_url: str) -> Iterator[ExperienceStore]:
    with ExperienceStore(store_url, busy_timeout_s=20.0) as opened:
        append(opened, 1, 4)
        yield opened


def append(store: ExperienceStore, step: int, number: int) -> None:
    rows = [experience(step, task) for task in range(number)]
    store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=step)


def consumers(store: ExperienceStore) -> tuple[ConsumerToken, ConsumerToken]:
    slow, fast = (store.open_consumer(BUFFER, name, run=RUN, cut=0) for name in ("slow", "fast"))
    return slow, fast


def before_payloads_are_read(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let the next claim stop where it is committed, and `act` happen there."""

    def stop(name: str) -> None:
        if name == "store.claim.after_commit":
            patch.undo()
            act()

    patch.setattr(module, "failpoint", stop)


def train(store: ExperienceStore, token: ConsumerToken, step: int, number: int) -> None:
    store.commit_step(token, step, uids(store.claim(token, number)))
    store.prune(token, step)


def test_rows_that_another_consumer_has_trained_meanwhile_stay_trained(
    store: ExperienceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = consumers(store)
    before_payloads_are_read(monkeypatch, lambda: train(store, fast, 1, 4))
    with pytest.raises(StoreError, match=r"E5204.*cannot read 4 experiences: 4 of them are not claimed by 'slow'"):
        store.claim(slow, 4, lease_s=-1.0)
    assert store.counts(BUFFER, RUN) == {"ready": 0, "claimed": 0, "trained": 4, "dropped": {}}
    append(store, 2, 1)
    train(store, fast, 2, 1)
    assert store.counts(BUFFER, RUN)["trained"] == 5


def test_a_consumer_that_was_replaced_meanwhile_gets_nothing(
    store: ExperienceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, _ = consumers(store)

    def replace() -> None:
        store.open_consumer(BUFFER, "slow", run=RUN, cut=0)
        assert store.take_back(BUFFER, PRODUCER, run=RUN, after=0) == 4

    before_payloads_are_read(monkeypatch, replace)
    with pytest.raises(StoreError, match="E5203"):
        store.claim(slow, 4)


def test_a_damaged_row_is_set_aside_only_by_the_consumer_that_holds_it(
    store: ExperienceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store._database.write() as connection:
        connection.execute(update(BLOB).where(BLOB.c.id == 2).values(experience_bytes=b"damaged"))
    slow, fast = consumers(store)
    set_aside = store._set_aside

    def late(token: ConsumerToken, ids: list[int], *, bad: int) -> None:
        monkeypatch.undo()
        with pytest.raises(DataError, match="E5101"):
            store.claim(fast, 4)
        train(store, fast, 1, 2)
        set_aside(token, ids, bad=bad)

    monkeypatch.setattr(store, "_set_aside", late)
    with pytest.raises(DataError, match=r"E5101.*row 2"):
        store.claim(slow, 4, lease_s=-1.0)
    assert store.counts(BUFFER, RUN) == {"ready": 1, "claimed": 0, "trained": 2, "dropped": {"unreadable": 1}}
    train(store, fast, 2, 1)
    append(store, 2, 1)
    assert store.counts(BUFFER, RUN) == {"ready": 1, "claimed": 0, "trained": 3, "dropped": {"unreadable": 1}}


def test_a_log_of_the_version_before_is_continued_and_marked(tmp_path: Path) -> None:
    """Its program would drop a payload in strict JSON as a damaged one: it must refuse the log from now on."""
    with open_store(tmp_path) as store:
        append(store, 1, 2)
    with sqlite3.connect(tmp_path / "experience.db") as connection:
        connection.execute("UPDATE trinity_schema SET version = 4")
    connection.close()
    with open_store(tmp_path) as store:
        append(store, 2, 1)
        assert len(store.claim(store.open_consumer(BUFFER, "trainer", run=RUN, cut=0), 3)) == 3
        with store._database.read() as opened:
            assert opened.exec_driver_sql("SELECT version FROM trinity_schema").scalar() == SCHEMA_VERSION == 5
