"""Back-pressure of the explorer: it waits for room, not for a trainer that has finished, and not for ever."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, uids
from trinity.buffer.store import ExperienceStore
from trinity.buffer.store.tables import NO_ROOM
from trinity.common.errors import DeadlineError, StarvedError
from trinity.explorer.backpressure import wait_for_room
from trinity.explorer.producer import Producer
from trinity.runtime.worker_thread import WorkerThread
from trinity.synchronizer.local import LocalSynchronizer
from trinity.synchronizer.schedule import FixedSchedule


@pytest.fixture
def full(tmp_path: Path):
    """A queue of two experiences that holds two."""
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db", capacity=2) as store:
        store.open_producer(BUFFER, PRODUCER, run=RUN)
        rows = [experience(1, task) for task in range(2)]
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
        yield store


async def waited(store: ExperienceStore, synchronizer: LocalSynchronizer, *, timeout_s: float) -> float:
    io = WorkerThread("io")
    try:
        producer = Producer(store, io.call, buffer=BUFFER, name=PRODUCER, scope={"run": RUN})
        return await wait_for_room(producer, synchronizer, timeout_s=timeout_s)
    finally:
        io.close()


def synchronizer() -> LocalSynchronizer:
    return LocalSynchronizer(FixedSchedule(), timeout_s=60)


@pytest.mark.difference("A full queue")
def test_a_queue_that_stays_full_is_an_error_with_the_settings(full: ExperienceStore) -> None:
    with pytest.raises(DeadlineError, match=r"E5142.*capacity 2.*synchronizer\.sync_timeout") as caught:
        asyncio.run(waited(full, synchronizer(), timeout_s=0.1))
    assert caught.value.exit_code == 5


def test_a_trainer_that_has_finished_is_not_waited_for(full: ExperienceStore) -> None:
    async def run() -> float:
        finished = synchronizer()
        await finished.finish_trainer()
        return await waited(full, finished, timeout_s=60)

    assert asyncio.run(run()) < 50


@pytest.mark.parametrize("version", [0, NO_ROOM - 1], ids=["of the policy", "of any weights"])
def test_who_has_not_seen_yet_that_there_is_room_is_waited_for(full: ExperienceStore, version: int) -> None:
    token = full.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
    assert not full.wait_for_room(BUFFER, PRODUCER, run=RUN, timeout_s=0)
    batch = full.read_batch(token, 2, timeout_s=60, trained_version=version)
    full.commit_step(token, 1, uids(batch.experiences))
    with pytest.raises(StarvedError):
        full.read_batch(token, 2, timeout_s=0.2, trained_version=version)


def test_a_reader_who_needs_more_than_fits_gets_what_is_there(full: ExperienceStore) -> None:
    token = full.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)

    async def run() -> float:
        waiting = asyncio.create_task(waited(full, synchronizer(), timeout_s=60))
        batch = await asyncio.to_thread(full.read_batch, token, 3, timeout_s=60, trained_version=0)
        assert len(batch.experiences) == 2 and not batch.is_complete
        await asyncio.to_thread(full.commit_step, token, 1, uids(batch.experiences))
        return await waiting

    started = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - started < 50, "neither waits for the other to give up"
