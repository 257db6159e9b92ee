"""Processes that are killed, and processes that compete: nothing is lost, nothing is trained twice."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, generated, open_store, uids
from tests.buffer.store.worker import work
from trinity.utils import failpoints

NUM_STEPS, NUM_TASKS, BATCH = 3, 4, 3
ALL = sorted(f"{step}/{task}/0/0/" for step in range(1, NUM_STEPS + 1) for task in range(NUM_TASKS))
PRODUCE = {"num_steps": NUM_STEPS, "num_tasks": NUM_TASKS}

# A server that has imported everything once and forks: a process takes 0.1 s instead of 3 s.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.buffer.store.worker"])


def start(command: str, folder: Path, *, fail: str = "", **options: Any) -> ForkServerProcess:
    process = _processes.Process(target=work, args=(fail, command, folder, options))
    process.start()
    return process


def run(command: str, folder: Path, *, fail: str = "", **options: Any) -> int | None:
    process = start(command, folder, fail=fail, **options)
    process.join(timeout=120)
    return process.exitcode


def trained(folder: Path, *, up_to: int) -> list[str]:
    with open_store(folder) as store:
        token = store.open_consumer(BUFFER, "looker", run=RUN, cut=0)
        mine = type(token)(token.buffer, CONSUMER, token.run, token.stage, token.epoch)
        return [uid for step in range(1, up_to + 1) for uid in store.step_uids(mine, step) or []]


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("place", ["store.append.before_commit", "store.append.after_commit"])
def test_a_producer_killed_around_its_commit_loses_and_doubles_nothing(tmp_path: Path, place: str, hit: int) -> None:
    assert run("produce", tmp_path, **PRODUCE, fail=f"{place}=kill@{hit}") == -9
    with open_store(tmp_path) as store:
        kept = hit - (place == "store.append.before_commit")
        assert generated(store.counts(BUFFER, RUN)) == kept * NUM_TASKS
        assert store.finished_step(BUFFER, PRODUCER, run=RUN) == kept
        assert store.producers_open(BUFFER, run=RUN) == 1
    assert run("produce", tmp_path, **PRODUCE) == 0
    assert run("train", tmp_path, batch=BATCH, cut=0) == 0
    assert trained(tmp_path, up_to=10) == ALL


@pytest.mark.difference("When a row counts as used")
@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize(
    "place", ["store.claim.after_commit", "store.commit_step.before_commit", "store.commit_step.after_commit"]
)
def test_a_trainer_killed_anywhere_trains_every_row_once_after_its_cut(tmp_path: Path, place: str, cut: int) -> None:
    assert run("produce", tmp_path, **PRODUCE) == 0
    assert run("train", tmp_path, batch=BATCH, cut=0, fail=f"{place}=kill@2") == -9
    with open_store(tmp_path) as store:
        counts = store.counts(BUFFER, RUN)
        committed = 2 if place.endswith("step.after_commit") else 1
        assert counts["trained"] == committed * BATCH and generated(counts) == len(ALL)
    assert run("train", tmp_path, batch=BATCH, cut=cut) == 0
    assert trained(tmp_path, up_to=10) == ALL
    with open_store(tmp_path) as store:
        assert store.counts(BUFFER, RUN) == {"ready": 0, "claimed": 0, "trained": len(ALL), "dropped": {}}


def test_a_full_disk_in_a_transaction_leaves_it_undone(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        failpoints.configure("store.append.before_commit=enospc@1")
        try:
            rows = [experience(1, 0)]
            with pytest.raises(OSError, match="No space left"):
                store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
            assert generated(store.counts(BUFFER, RUN)) == 0
            assert store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1).appended == 1
        finally:
            failpoints.configure("")


def test_two_processes_share_the_rows_without_doubles(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        rows = [experience(1, task) for task in range(60)]
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
        processes = [start("claim", tmp_path, consumer=name) for name in ("a", "b")]
        for process in processes:
            process.join(timeout=120)
        claimed = [uid for file in tmp_path.glob("?.txt") for uid in file.read_text().split()]
        assert sorted(claimed) == sorted(uids(rows))
        assert store.counts(BUFFER, RUN)["trained"] == 60


def test_two_processes_can_make_the_database_at_the_same_moment(tmp_path: Path) -> None:
    processes = [start("produce", tmp_path, **PRODUCE) for _ in range(2)]
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0]
    with open_store(tmp_path) as store:
        assert store.counts(BUFFER, RUN)["ready"] == len(ALL)


def test_four_threads_of_two_consumers_share_the_rows_without_doubles(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        rows = [experience(1, task) for task in range(200)]
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
        tokens = [store.open_consumer(BUFFER, name, run=RUN, cut=0) for name in ("a", "b")]
        claimed: list[str] = []

        def work(number: int) -> None:
            while got := uids(store.claim(tokens[number % 2], 3)):
                claimed.extend(got)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(claimed) == sorted(uids(rows))
