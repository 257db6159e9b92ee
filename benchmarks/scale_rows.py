"""What a long history costs: the calls of a trainer and of an explorer on a store that holds many old rows.

The history is made by bulk statements: experiences that were trained 64 a step and whose payloads were pruned. On top
comes what a run holds at any time: a replay buffer of `CAPACITY` experiences, and a queue that is empty or short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from scale_child import clocks, since
from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.engine import make_url

from trinity.buffer.priority import PRIORITY_FUNC
from trinity.buffer.store import ConsumerToken, ExperienceStore, Replay
from trinity.buffer.store.staleness import StalenessBound
from trinity.buffer.store.tables import CONSUMER, TRAIN_STEP
from trinity.common.experience import EID, Experience

BATCH = 64
CAPACITY = 1024
BULK_ROWS = 500_000
COOLDOWN_S = 86400.0
SCOPE = {"run": "run", "stage": "", "buffer": "exp"}
SERIES = (
    "WITH RECURSIVE series(i) AS (SELECT CAST(:first AS INTEGER) UNION ALL SELECT i + 1 FROM series WHERE i < :last) "
)
PLACE = ":run, :stage, :buffer"
UID = f"(i / {BATCH} + 1) || '/' || (i % {BATCH}) || '/0/0/'"
STEP = f"i / {BATCH} + 1"
ROWS = (
    "INSERT INTO experience (run, stage, buffer, uid, task_id, producer, explore_step, run_id, msg_id, model_version, "
    "reward, consumed, state, claimed_by, trained_step, retired_step, use_count, prompt_text, response_text) "
    f"{{series}} SELECT {PLACE}, {UID}, ({STEP}) || '/' || (i % {BATCH}), 'explorer', {STEP}, 0, '0', {STEP} - 1, "
    f"(i % 101) / 100.0, 1, 'trained', 'trainer', {STEP}, {STEP}, 1, 'prompt ' || i || ' of' || :filling, 'a response' "
    "FROM series"
)
USES = (
    "INSERT INTO step_exp (run, stage, buffer, consumer, step, pos, uid) "
    f"{{series}} SELECT {PLACE}, 'trainer', {STEP}, i % {BATCH}, {UID} FROM series"
)
CALLS = {
    "poll": "poll of a trainer that waits",
    "claim": f"claim of {BATCH}",
    "commit": "commit of a step",
    "prune": "prune of a step",
    "replay_poll": "replay's poll",
    "replay_claim": f"replay's claim of {BATCH}",
    "replay_prune": "replay's prune",
    "append": f"append of {BATCH}",
    "enter_batch": "pacing, before a batch",
    "room": "room in a full queue",
    "resume": "start of a trainer",
}
Row = dict[str, Any]


def rows_of(step: int, number: int) -> list[Experience]:
    """Return experiences whose payload has 8 KiB."""
    length = 500
    tokens = torch.arange(length)
    logprobs = torch.full((length // 2,), -0.5)
    filling = "x" * 2450
    return [
        Experience(
            eid=EID(step, task), tokens=tokens, prompt_length=length // 2, logprobs=logprobs, reward=1.0,
            info={"model_version": 0, "filling": filling},
        )
        for task in range(number)
    ]  # fmt: skip


def fill(url: str, *, rows: int, place: Mapping[str, str] = SCOPE, text_bytes: int = 0) -> int:
    """Write a history of `rows` experiences of the buffer at `place`; return the number of its training steps.

    Each has a prompt of more than `text_bytes`.
    """
    steps = rows // BATCH
    with ExperienceStore(url) as store:
        store.open_producer(place["buffer"], "explorer", run=place["run"])
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _hurry)
    for first in range(0, steps * BATCH, BULK_ROWS):
        ends = {"first": first, "last": min(first + BULK_ROWS, steps * BATCH) - 1}
        with engine.begin() as connection:
            for statement in (ROWS, USES):
                values = {**place, **ends, "filling": " word" * (text_bytes // 5)}
                connection.execute(text(statement.format(series=SERIES)), values)
    with engine.begin() as connection:
        connection.execute(insert(CONSUMER).values(**place, consumer="trainer", epoch=1, opened_at=0.0))
        done = {**place, "consumer": "trainer", "epoch": 1, "num_experiences": BATCH, "committed_at": 0.0}
        connection.execute(insert(TRAIN_STEP), [{**done, "step": step} for step in range(1, steps + 1)])
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()
    return steps


def _hurry(connection: Any, _: Any) -> None:
    """Give up durability while the history is made: nothing of it is worth keeping after a crash."""
    for setting in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-1000000"):
        connection.execute(f"PRAGMA {setting}")


class Timer:
    """Collects the milliseconds of calls by name, on the clock and of this process on a CPU."""

    def __init__(self) -> None:
        self._ms: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time the block."""
        started = clocks()
        yield
        wall_s, cpu_s = since(started)
        self._ms.setdefault(name, []).append((wall_s * 1e3, cpu_s * 1e3))

    def medians(self) -> dict[str, float]:
        """Return the medians of each name, `<name>_ms` and `<name>_cpu_ms`."""
        units = ("ms", "cpu_ms")
        return {
            f"{name}_{unit}": median(values)
            for name, pairs in self._ms.items()
            for unit, values in zip(units, zip(*pairs, strict=True), strict=True)
        }


def _poll(store: ExperienceStore, token: ConsumerToken) -> None:
    if store._try_read(token, BATCH, is_last=False, trained_version=10**9) is not None:
        raise RuntimeError("the poll was to find too little")


def _queue(store: ExperienceStore, token: ConsumerToken, timer: Timer, *, steps: int, repeats: int) -> int:
    """Time a queue's calls; return the number of training steps at their end."""
    bound = StalenessBound(max_staleness=1, rollouts=BATCH, rollouts_per_step=BATCH)
    for _ in range(repeats):
        for _ in range(3):
            with timer.of("poll"):
                _poll(store, token)
        with timer.of("enter_batch"):
            store.enter_batch("exp", "explorer", run="run", version=steps, bound=bound)
        with timer.of("room"):
            store.wait_for_room("exp", "explorer", run="run", timeout_s=60.0)
        steps += 1
        batch = rows_of(steps, BATCH)
        with timer.of("append"):
            store.append("exp", batch, run="run", producer="explorer", explore_step=steps)
        with timer.of("claim"):
            claimed = store.claim(token, BATCH, at_least=BATCH, max_version=10**9, whole_rollouts=True)
        with timer.of("commit"):
            store.commit_step(token, steps, [one.eid.uid for one in claimed])
    return steps


def _replay(store: ExperienceStore, token: ConsumerToken, timer: Timer, *, steps: int, repeats: int) -> None:
    for _ in range(repeats):
        for _ in range(3):
            with timer.of("replay_poll"):
                _poll(store, token)
        steps += 1
        store.append("exp", rows_of(steps, BATCH), run="run", producer="explorer", explore_step=steps)
        with timer.of("replay_claim"):
            batch = store._try_read(token, BATCH, is_last=False, trained_version=10**9)
        if batch is None or len(batch.experiences) != BATCH:
            raise RuntimeError(f"{BATCH} new rollouts were to be claimed, got {batch}")
        store.commit_step(token, steps, [one.eid.uid for one in batch.experiences])
        with timer.of("replay_prune"):
            store.prune(token, steps - 1)


def history(url: str, *, rows: int, repeats: int) -> Row:
    """Return the median milliseconds of each call on a history of `rows` experiences."""
    steps, timer = fill(url, rows=rows), Timer()
    with ExperienceStore(url, capacity=BATCH * 4) as store:
        for _ in range(3):
            with timer.of("resume"):
                token = store.open_consumer("exp", "trainer", run="run", cut=steps)
        repeats = max(repeats, CAPACITY // BATCH + 1)
        steps = _queue(store, token, timer, steps=steps, repeats=repeats)
        kept = CAPACITY // BATCH
        for step in range(steps - repeats + 1, steps - kept + 1):
            with timer.of("prune"):
                store.prune(token, step)
    replay = Replay(PRIORITY_FUNC.get("linear_decay")(), cooldown_s=COOLDOWN_S, capacity=CAPACITY)
    with ExperienceStore(url, replay=replay) as store:
        token = store.open_consumer("exp", "trainer", run="run", cut=steps)
        _replay(store, token, timer, steps=steps, repeats=repeats)
    return {"rows": rows} | timer.medians()


def histories(folder: Path, *, rows: Sequence[int], repeats: int, url: str | None = None) -> list[Row]:
    """Return `history` of each number of rows: in SQLite files of `folder`, or in a PostgreSQL server's databases.

    Args:
        folder: on the disk that is measured.
        rows: of each history.
        repeats: of each call, the median of which counts.
        url: of a PostgreSQL server, with a user that may create databases.
    """
    found = []
    for number in rows:
        with database(folder, url, name=f"trinity_scale_{number}") as place:
            found.append(history(place, rows=number, repeats=repeats))
    return found


@contextmanager
def database(folder: Path, url: str | None, *, name: str) -> Iterator[str]:
    """Make an empty database, and remove it at the end."""
    if url is None:
        try:
            yield f"sqlite:///{folder}/{name}.db"
        finally:
            for each in folder.glob(f"{name}.db*"):
                each.unlink()
        return
    server = create_engine(url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        try:
            yield make_url(url).set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


def slope(found: Sequence[Row], name: str) -> float:
    """Return the exponent of a call's time in the number of rows: 0 is flat, 1 grows as the history does.

    It is not a number for histories of one length.
    """
    first, last = found[0], found[-1]
    if first["rows"] == last["rows"]:
        return math.nan
    return math.log(last[name] / first[name]) / math.log(last["rows"] / first["rows"])


def table(found: Sequence[Row]) -> list[str]:
    """Return the figures as lines of Markdown: `on the clock (CPU)`, and the slope of the CPU time."""
    heads = [f"{row['rows']:,} rows" for row in found]
    lines = [f"| ms | {' | '.join(heads)} | slope |", "|---" * (len(found) + 2) + "|"]
    for name, what in CALLS.items():
        each = [f"{row[f'{name}_ms']:.1f} ({row[f'{name}_cpu_ms']:.1f})" for row in found]
        lines.append(f"| {what} | {' | '.join(each)} | {slope(found, f'{name}_cpu_ms'):.2f} |")
    return lines
