"""Separate explorers of which one has died: nobody waits for it, unless there is no other."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.buffer.store.oracle import experience
from tests.resolved import resolved
from trinity.buffer.store import ConsumerToken, ExperienceStore
from trinity.buffer.store.staleness import StalenessBound
from trinity.buffer.store.tables import ABSENT
from trinity.common.config import Config
from trinity.common.errors import StarvedError
from trinity.explorer.assembly import experience_buffer, store_scope
from trinity.launch.explorer_liveness import watch_explorers
from trinity.utils.locks import FileLock, part_lock

BOUND = StalenessBound(0, rollouts=4, rollouts_per_step=4)


class Explorers:
    """Explorers of a job, each alive while its lock is held."""

    def __init__(self, folder: Path, store: ExperienceStore) -> None:
        values = {
            "project": "p", "name": "n", "mode": "train", "checkpoint_job_dir": str(folder),
            "model": {"model_path": "m", "max_model_len": 64},
            "buffer": {"train_batch_size": 4, "trainer_input": {"experience_buffer": {"name": "e", "path": "p"}}},
        }  # fmt: skip
        self.folder, self.store = folder, store
        self.config: Config = resolved(values)
        self.buffer, self.scope = experience_buffer(self.config), store_scope(self.config)
        self.locks: dict[str, FileLock] = {}

    def start(self, *names: str) -> None:
        for name in names:
            part_lock(self.folder, name).parent.mkdir(exist_ok=True)
            self.locks[name] = FileLock(part_lock(self.folder, name))
            self.store.open_producer(self.buffer, name, **self.scope)

    def kill(self, *names: str) -> None:
        for name in names:
            self.locks.pop(name).release()

    def watch(self) -> None:
        """Watch until those that have no lock are known to be absent."""
        gone = self.store.producers(self.buffer, **self.scope).keys() - self.locks.keys()

        async def watched() -> None:
            watching = asyncio.create_task(watch_explorers(self.config, self.store))
            while self.absent() != gone:
                await asyncio.wait({watching}, timeout=0.05)
                assert not watching.done()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

        asyncio.run(asyncio.wait_for(watched(), 60))

    def absent(self) -> set[str]:
        with closing(sqlite3.connect(self.folder / "experience.db")) as database:
            found = database.execute("select producer from producer where wait_version = ?", (ABSENT,))
            return {name for (name,) in found}

    def num_read(self, token: ConsumerToken) -> int:
        return len(self.store.read_batch(token, 4, timeout_s=0.5, trained_version=0).experiences)

    def may_begin(self, name: str) -> bool:
        found = self.store.enter_batch(self.buffer, name, **self.scope, version=0, bound=BOUND)
        return found.required_version(BOUND, in_flight=0) <= 0


@pytest.fixture
def explorers(tmp_path: Path):
    with ExperienceStore(f"sqlite:///{tmp_path}/experience.db") as store:
        yield Explorers(tmp_path, store)


def test_the_trainer_continues_with_the_others(explorers: Explorers) -> None:
    explorers.start("one", "two")
    token = explorers.store.open_consumer(explorers.buffer, "trainer", cut=0, **explorers.scope)
    explorers.store.append(explorers.buffer, [experience(1, 0)], producer="one", explore_step=1, **explorers.scope)
    explorers.store.announce_wait(explorers.buffer, "one", 1, **explorers.scope)
    explorers.kill("two")
    explorers.watch()
    assert explorers.num_read(token) == 1, "the first waits for newer weights, and the second is not waited for"


def test_the_others_do_not_leave_room_for_it(explorers: Explorers) -> None:
    explorers.start("one", "two")
    assert not explorers.may_begin("one"), "the other may append a step before"
    explorers.kill("two")
    explorers.watch()
    assert explorers.may_begin("one")
    explorers.start("two")
    assert not explorers.may_begin("two"), "it is back, and the first has begun"


def test_an_explorer_that_only_seemed_dead_is_waited_for_again(explorers: Explorers) -> None:
    explorers.start("one", "two")
    token = explorers.store.open_consumer(explorers.buffer, "trainer", cut=0, **explorers.scope)
    explorers.store.announce_wait(explorers.buffer, "one", 1, **explorers.scope)
    explorers.store.note_presence(explorers.buffer, "two", is_there=False, **explorers.scope)
    assert explorers.num_read(token) == 0
    explorers.store.note_presence(explorers.buffer, "two", is_there=True, **explorers.scope)
    with pytest.raises(StarvedError):
        explorers.num_read(token)


def test_the_only_explorer_is_waited_for(explorers: Explorers) -> None:
    explorers.start("one", "two")
    token = explorers.store.open_consumer(explorers.buffer, "trainer", cut=0, **explorers.scope)
    explorers.kill("one", "two")
    explorers.watch()
    with pytest.raises(StarvedError):
        explorers.num_read(token)
