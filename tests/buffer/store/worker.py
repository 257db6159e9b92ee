"""What other processes do with the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, open_store, uids
from trinity.utils import failpoints


def produce(folder: Path, *, num_steps: int, num_tasks: int) -> None:
    """Append every step that is not in the log; a repeated step is appended again."""
    with open_store(folder) as store:
        store.open_producer(BUFFER, PRODUCER, run=RUN)
        done = store.finished_step(BUFFER, PRODUCER, run=RUN)
        for step in range(max(done, 1), num_steps + 1):
            rows = [experience(step, task) for task in range(num_tasks)]
            store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=step)
        store.close_producer(BUFFER, PRODUCER, run=RUN)


def train(folder: Path, *, batch: int, cut: int) -> None:
    """Train to the end from checkpoint `cut`."""
    with open_store(folder) as store:
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=cut)
        step = cut
        while not (read := store.read_batch(token, batch, timeout_s=20)).is_closed:
            step += 1
            store.commit_step(token, step, uids(read.experiences))


def claim(folder: Path, *, consumer: str) -> None:
    """Claim a few at a time what is there, commit it and note it in the file `<consumer>.txt`."""
    with open_store(folder) as store:
        token = store.open_consumer(BUFFER, consumer, run=RUN, cut=0)
        step = 0
        while rows := uids(store.claim(token, 3)):
            step += 1
            store.commit_step(token, step, rows)
            with (folder / f"{consumer}.txt").open("a") as file:
                file.write("".join(f"{uid}\n" for uid in rows))


def work(fail: str, command: str, folder: Path, options: dict[str, Any]) -> None:
    """Run `command` in this process with armed failpoints."""
    failpoints.configure(fail)
    {"produce": produce, "train": train, "claim": claim}[command](folder, **options)
