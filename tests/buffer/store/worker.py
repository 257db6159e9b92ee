"""What other processes do with the store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, open_store, uids
from trinity.common.errors import StoreError
from trinity.utils import failpoints


def produce(folder: Path, *, num_steps: int, num_tasks: int, producer: str = PRODUCER, first_task: int = 0) -> None:
    """Append every step that is not in the log; a repeated step is appended again."""
    with open_store(folder) as store:
        store.open_producer(BUFFER, producer, run=RUN)
        done = store.finished_step(BUFFER, producer, run=RUN)
        for step in range(max(done, 1), num_steps + 1):
            rows = [experience(step, first_task + task) for task in range(num_tasks)]
            store.append(BUFFER, rows, run=RUN, producer=producer, explore_step=step)
        store.close_producer(BUFFER, producer, run=RUN)


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


def train_until_fenced(folder: Path, *, batch: int) -> None:
    """Claim a batch, write the file `claimed`, wait for `go`, commit; write the code of the error to `error`."""
    with open_store(folder) as store:
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        rows = uids(store.claim(token, batch))
        (folder / "claimed").touch()
        deadline = time.monotonic() + 60
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            store.commit_step(token, 1, rows)
        except StoreError as error:
            (folder / "error").write_text(error.code)


def work(fail: str, command: str, folder: Path, options: dict[str, Any]) -> None:
    """Run `command` in this process with armed failpoints."""
    failpoints.configure(fail)
    {"produce": produce, "train": train, "claim": claim, "train_until_fenced": train_until_fenced}[command](
        folder, **options
    )
