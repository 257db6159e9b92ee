"""Waiting for a batch: full, incomplete, closed, starved."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, open_store, uids
from trinity.buffer.store import ConsumerToken, ExperienceStore
from trinity.common.errors import StarvedError, StoreError
from trinity.common.experience import EID, Experience


@pytest.fixture
def store(store_url: str):
    with ExperienceStore(store_url, busy_timeout_s=20.0) as opened:
        opened.open_producer(BUFFER, PRODUCER, run=RUN)
        yield opened


@pytest.fixture
def token(store: ExperienceStore) -> ConsumerToken:
    return store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)


def append(store: ExperienceStore, step: int, num: int, *, version: int = 0) -> None:
    rows = [experience(step, task, version=version) for task in range(num)]
    store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=step)


def close_producer(store: ExperienceStore) -> None:
    store.close_producer(BUFFER, PRODUCER, run=RUN)


def test_a_full_batch_comes_at_once(store: ExperienceStore, token: ConsumerToken) -> None:
    append(store, 1, 5)
    batch = store.read_batch(token, 4, timeout_s=60)
    assert len(batch.experiences) == 4 and batch.is_complete and not batch.is_closed


@pytest.mark.difference("`max_read_timeout` reached")
def test_at_the_deadline_the_incomplete_batch_comes_and_nothing_is_lost(
    store: ExperienceStore, token: ConsumerToken
) -> None:
    append(store, 1, 3)
    started = time.monotonic()
    batch = store.read_batch(token, 4, timeout_s=0.3)
    assert 0.25 < time.monotonic() - started < 30
    assert uids(batch.experiences) == ["1/0/0/0/", "1/1/0/0/", "1/2/0/0/"] and not batch.is_complete
    assert store.counts(BUFFER, RUN)["claimed"] == 3


@pytest.mark.difference("`max_read_timeout` reached")
def test_nothing_at_the_deadline_is_starvation(store: ExperienceStore, token: ConsumerToken) -> None:
    with pytest.raises(StarvedError, match=r"within 0\.1 s .*max_read_timeout") as caught:
        store.read_batch(token, 4, timeout_s=0.1)
    assert caught.value.exit_code == 9


def test_a_reader_before_any_producer_waits(tmp_path: Path) -> None:
    with open_store(tmp_path) as empty:
        early = empty.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        with pytest.raises(StarvedError):
            empty.read_batch(early, 1, timeout_s=0.05)


@pytest.mark.difference("No more can come")
def test_after_the_last_producer_the_rest_is_drained_and_then_it_is_closed(
    store: ExperienceStore, token: ConsumerToken
) -> None:
    append(store, 1, 3)
    store.open_producer(BUFFER, "second", run=RUN)
    close_producer(store)
    assert store.producers_open(BUFFER, run=RUN) == 1
    store.close_producer(BUFFER, "second", run=RUN)
    started = time.monotonic()
    tail = store.read_batch(token, 8, timeout_s=60)
    end = store.read_batch(token, 8, timeout_s=60)
    assert time.monotonic() - started < 50
    assert (len(tail.experiences), tail.is_complete, tail.is_closed) == (3, False, False)
    assert (end.experiences, end.is_complete, end.is_closed) == ([], False, True)


def test_a_producer_that_waits_for_newer_weights_ends_the_wait(store: ExperienceStore, token: ConsumerToken) -> None:
    append(store, 1, 3)
    store.announce_wait(BUFFER, PRODUCER, 1)
    started = time.monotonic()
    batch = store.read_batch(token, 4, timeout_s=60, trained_version=0)
    assert (len(batch.experiences), batch.is_complete) == (3, False)
    empty = store.read_batch(token, 4, timeout_s=60, trained_version=0)
    assert (empty.experiences, empty.is_complete, empty.is_closed) == ([], False, False)
    assert time.monotonic() - started < 50
    with pytest.raises(StarvedError):
        store.read_batch(token, 4, timeout_s=0.1, trained_version=1)


def test_one_of_two_producers_waiting_does_not_end_the_wait(store: ExperienceStore, token: ConsumerToken) -> None:
    store.open_producer(BUFFER, "second", run=RUN)
    store.announce_wait(BUFFER, "second", 1, run=RUN)
    with pytest.raises(StarvedError):
        store.read_batch(token, 1, timeout_s=0.1, trained_version=0)


def test_a_producer_that_opens_again_is_not_waiting(store: ExperienceStore, token: ConsumerToken) -> None:
    store.announce_wait(BUFFER, PRODUCER, 5)
    store.open_producer(BUFFER, PRODUCER, run=RUN)
    with pytest.raises(StarvedError):
        store.read_batch(token, 1, timeout_s=0.1, trained_version=0)


def test_after_going_back_experiences_of_newer_weights_wait_for_their_turn(
    store: ExperienceStore, token: ConsumerToken
) -> None:
    append(store, 1, 2, version=0)
    append(store, 2, 4, version=1)
    store.announce_wait(BUFFER, PRODUCER, 2)
    first = store.read_batch(token, 4, timeout_s=60, trained_version=0)
    assert uids(first.experiences) == ["1/0/0/0/", "1/1/0/0/"] and not first.is_complete
    second = store.read_batch(token, 4, timeout_s=60, trained_version=1)
    assert len(second.experiences) == 4 and second.is_complete


def test_after_going_back_past_an_empty_step_the_end_comes_after_the_last_experience(
    store: ExperienceStore, token: ConsumerToken
) -> None:
    store.commit_step(token, 1, [])
    append(store, 1, 4, version=1)
    close_producer(store)
    again = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
    found = [store.read_batch(again, 4, timeout_s=60, trained_version=version) for version in (0, 1, 2)]
    assert [len(batch.experiences) for batch in found] == [0, 4, 0]
    assert [batch.is_closed for batch in found] == [False, False, True]


def test_an_append_by_another_thread_wakes_the_reader(store: ExperienceStore, token: ConsumerToken) -> None:
    results = []
    reader = threading.Thread(target=lambda: results.append(store.read_batch(token, 2, timeout_s=30)))
    reader.start()
    append(store, 1, 1)
    append(store, 2, 1)
    reader.join(timeout=20)
    assert not reader.is_alive() and uids(results[0].experiences) == ["1/0/0/0/", "2/0/0/0/"]


def test_an_append_through_another_connection_is_seen(store_url: str, store: ExperienceStore) -> None:
    token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)

    def write() -> None:
        with ExperienceStore(store_url) as other:
            append(other, 1, 2)

    writer = threading.Timer(0.2, write)
    writer.start()
    assert store.read_batch(token, 2, timeout_s=30).is_complete
    writer.join(timeout=20)


def test_closing_the_store_ends_a_waiting_read(store: ExperienceStore, token: ConsumerToken) -> None:
    threading.Timer(0.2, store.close).start()
    started = time.monotonic()
    with pytest.raises(StoreError, match="is closed"):
        store.read_batch(token, 1, timeout_s=60)
    assert time.monotonic() - started < 50


def rollout(task: int, run: int, steps: int) -> list[Experience]:
    """Return the experiences of one rollout of explore step 1."""
    found = [experience(1, task, run) for _ in range(steps)]
    for step, one in enumerate(found):
        one.eid.step = step
    return found


def test_a_batch_takes_whole_rollouts_however_many_steps_they_have(
    store: ExperienceStore, token: ConsumerToken
) -> None:
    rows = [*rollout(0, 0, 3), *rollout(0, 1, 1), *rollout(1, 0, 12), *rollout(1, 1, 2)]
    store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
    first = store.read_batch(token, 2, timeout_s=60)
    assert uids(first.experiences) == ["1/0/0/0/", "1/0/0/1/", "1/0/0/2/", "1/0/1/0/"] and first.is_complete
    second = store.read_batch(token, 2, timeout_s=60)
    assert [one.eid.rid for one in second.experiences] == ["1/1/0"] * 12 + ["1/1/1"] * 2 and second.is_complete
    close_producer(store)
    assert store.read_batch(token, 2, timeout_s=60).is_closed


def test_a_resumed_reader_gets_the_same_rollouts_again(store: ExperienceStore, token: ConsumerToken) -> None:
    rows = [*rollout(0, 0, 2), *rollout(0, 1, 3), *rollout(1, 0, 1), *rollout(1, 1, 4)]
    store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
    batches = [uids(store.read_batch(token, 2, timeout_s=60).experiences) for _ in range(2)]
    store.commit_step(token, 1, batches[0])
    store.commit_step(token, 2, batches[1])
    again = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=1)
    assert uids(store.read_batch(again, 2, timeout_s=60).experiences) == batches[1]
    whole = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
    assert uids(store.read_batch(whole, 9, timeout_s=0).experiences) == batches[0] + batches[1]


def test_experiences_that_name_no_task_are_read_one_by_one(store: ExperienceStore, token: ConsumerToken) -> None:
    rows = [experience(1, 0) for _ in range(3)]
    for number, row in enumerate(rows):
        row.eid = EID(suffix=str(number))
    store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
    batch = store.read_batch(token, 2, timeout_s=60)
    assert uids(batch.experiences) == ["//0/0/0", "//0/0/1"] and batch.is_complete
