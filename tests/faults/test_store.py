"""The store under others: a lock that lasts, several producers, a stopped trainer, a producer that is too fast."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest
import yaml

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, generated, open_store, uids
from tests.buffer.store.test_faults import run, start, trained
from tests.e2e.tiny_run import TinyRun
from trinity.buffer.store import ExperienceStore
from trinity.launch.run import RunOptions, plan_run, run_plan


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.005)


@pytest.mark.slow
def test_a_run_waits_for_a_lock_within_its_budget_and_loses_nothing(tmp_path: Path) -> None:
    lock_s = 4.0
    run = TinyRun(tmp_path).change(
        checkpoint_root_dir=str(tmp_path / "out"),
        model__model_path=str(tmp_path / "model"),
        buffer__explorer_input__taskset__path=str(tmp_path / "train.jsonl"),
        buffer__total_steps=3,
        buffer__trainer_input__experience_buffer={"capacity": 4},
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    file, held = run.job / "buffer" / "experience.db", threading.Event()

    def hold() -> None:
        wait_for(run.job / "metrics.jsonl")
        connection = sqlite3.connect(file, isolation_level=None, timeout=30)
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(lock_s)
        connection.execute("ROLLBACK")
        connection.close()
        held.set()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    started = time.monotonic()
    plan = plan_run(tmp_path / "run.yaml", RunOptions())
    assert run_plan(plan, RunOptions()).error is None
    assert held.is_set() and time.monotonic() - started > lock_s, "the run had to wait for the lock"
    with ExperienceStore(f"sqlite:///{file}") as store:
        counts = store.counts("experience_buffer", "tiny/run")
    assert counts == {"ready": 0, "claimed": 0, "trained": 12, "dropped": {}}


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
            process.join(timeout=60)
        assert [process.exitcode for process in processes.values()] == [0, -9, 0]
        counts = store.counts(BUFFER, RUN)
        assert generated(counts) == 2 * steps * tasks + tasks, "the step that was not committed is not there"
        assert run("produce", tmp_path, **options["b"]) == 0
        trainer.join(timeout=60)
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
        zombie.join(timeout=60)
        assert (tmp_path / "error").read_text() == "E5203"
        assert taken == uids(rows) == store.step_uids(token, 1)
        assert store.counts(BUFFER, RUN)["trained"] == 4


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
            time.sleep(0.05)  # an append takes a tenth of it
            counts = store.counts(BUFFER, RUN)
            highest = max(highest, counts["ready"] + counts["claimed"])
            step += 1
            store.commit_step(token, step, uids(batch.experiences))
        thread.join(timeout=60)
        assert step == num_steps * size // 8, "every batch was full"
        assert capacity <= highest < capacity + size
        assert store.counts(BUFFER, RUN) == {"ready": 0, "claimed": 0, "trained": num_steps * size, "dropped": {}}
