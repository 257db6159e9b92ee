"""The store under others: a lock that lasts, several producers, a stopped trainer, a producer that is too fast."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, generated, open_store, uids
from tests.buffer.store.test_faults import run, start, trained
from tests.e2e.tiny_run import TinyRun
from tests.prepared import DEADLINE_S
from trinity.buffer.store import ExperienceStore

LOCK_S = 20.0


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.005)


@dataclass
class Locked:
    """A run in a process of its own, whose store is locked by somebody else for a while.

    Attributes:
        run: the run.
        process: of the run.
        holder: thread that holds the lock.
        was_waiting: whether the run was still there when the lock was given back.
    """

    run: TinyRun
    process: subprocess.Popen[str]
    holder: threading.Thread | None = None
    was_waiting: bool | None = None

    @property
    def file(self) -> Path:
        """The store."""
        return self.run.job / "buffer" / "experience.db"

    def hold(self) -> None:
        """Wait for the first metrics, then hold the lock for `LOCK_S` seconds."""
        wait_for(self.run.job / "metrics.jsonl")
        connection = sqlite3.connect(self.file, isolation_level=None, timeout=30)
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(LOCK_S)
        self.was_waiting = self.process.poll() is None
        connection.execute("ROLLBACK")
        connection.close()


@pytest.fixture(scope="module", autouse=True)
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    """The run begins before the other tests of this module, which continue while it waits; the last one looks at it."""
    run = TinyRun(tmp_path_factory.mktemp("locked")).change(
        buffer__total_steps=3, buffer__trainer_input__experience_buffer={"capacity": 4}
    )
    made = Locked(run, run.start())
    made.holder = threading.Thread(target=made.hold, daemon=True)
    made.holder.start()
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.communicate(timeout=30)


def test_several_producers_of_which_one_is_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    steps, tasks = 4, 3
    names = ("a", "b", "c")
    options = {
        name: {"num_steps": steps, "num_tasks": tasks, "producer": name, "first_task": 10 * place}
        for place, name in enumerate(names)
    }
    with open_store(tmp_path) as store:
        for name in names:
            store.open_producer(BUFFER, name, run=RUN)  # so that the trainer waits for all of them
        trainer = start("train", tmp_path, batch=4, cut=0)
        fails = {"b": "store.append.before_commit=kill@2"}
        processes = {name: start("produce", tmp_path, fail=fails.get(name, ""), **options[name]) for name in names}
        for process in processes.values():
            process.join(timeout=DEADLINE_S)
        assert [process.exitcode for process in processes.values()] == [0, -9, 0]
        counts = store.counts(BUFFER, RUN)
        assert generated(counts) == 2 * steps * tasks + tasks, "the step that was not committed is not there"
        assert run("produce", tmp_path, **options["b"]) == 0
        trainer.join(timeout=DEADLINE_S)
        assert trainer.exitcode == 0
        assert store.counts(BUFFER, RUN) == {"ready": 0, "claimed": 0, "trained": 36, "dropped": {}}
    used = trained(tmp_path, up_to=36)
    wanted = {f"{s}/{10 * p + t}/0/0/" for s in range(1, steps + 1) for p in range(3) for t in range(tasks)}
    assert len(used) == 36 and set(used) == wanted


def test_a_stopped_trainer_that_wakes_up_after_its_successor_is_fenced(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        rows = [experience(1, task) for task in range(4)]
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
        zombie = start("train_until_fenced", tmp_path, batch=4)
        wait_for(tmp_path / "claimed")
        assert zombie.pid is not None
        os.kill(zombie.pid, signal.SIGSTOP)
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        taken = uids(store.claim(token, 4))
        store.commit_step(token, 1, taken)
        (tmp_path / "go").touch()
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.join(timeout=DEADLINE_S)
        assert (tmp_path / "error").read_text() == "E5203"
        assert taken == uids(rows) == store.step_uids(token, 1)
        assert store.counts(BUFFER, RUN)["trained"] == 4


def num_waiting(store: ExperienceStore) -> int:
    counts = store.counts(BUFFER, RUN)
    return int(counts["ready"] + counts["claimed"])


def test_a_producer_that_is_ten_times_too_fast_waits_and_the_queue_stays_bounded(tmp_path: Path) -> None:
    capacity, size, num_steps, highest = 16, 2, 40, 0
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db", capacity=capacity) as store:
        store.open_producer(BUFFER, PRODUCER, run=RUN)
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)

        def produce() -> None:
            for step in range(1, num_steps + 1):
                assert store.wait_for_room(BUFFER, PRODUCER, timeout_s=60, run=RUN)
                rows = [experience(step, task) for task in range(size)]
                store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=step)
            store.close_producer(BUFFER, PRODUCER, run=RUN)

        thread = threading.Thread(target=produce, daemon=True)
        thread.start()
        step = 0
        while not (batch := store.read_batch(token, 8, timeout_s=60)).is_closed:
            while num_waiting(store) < capacity and thread.is_alive():
                time.sleep(0.005)
            time.sleep(0.05)  # long enough for ten appends more
            highest = max(highest, num_waiting(store))
            step += 1
            store.commit_step(token, step, uids(batch.experiences))
        thread.join(timeout=DEADLINE_S)
        assert step == num_steps * size // 8, "every batch was full"
        assert capacity <= highest < capacity + size
        assert store.counts(BUFFER, RUN) == {"ready": 0, "claimed": 0, "trained": num_steps * size, "dropped": {}}


@pytest.mark.slow
def test_a_run_waits_for_a_lock_of_twenty_seconds_and_loses_nothing(locked: Locked) -> None:
    output, _ = locked.process.communicate(timeout=120)
    assert locked.process.returncode == 0, output
    assert locked.holder is not None
    locked.holder.join(timeout=10)
    assert locked.was_waiting, "the run had to wait for the lock"
    times = sorted(line["time"] for actor in ("explorer", "trainer") for line in locked.run.lines(actor))
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) > LOCK_S - 2
    with ExperienceStore(f"sqlite:///{locked.file}") as store:
        counts = store.counts("experience_buffer", "tiny/run")
    assert counts == {"ready": 0, "claimed": 0, "trained": 12, "dropped": {}}
