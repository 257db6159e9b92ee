"""A store on a PostgreSQL server that restarts, is cut off, or is gone; and several writers at once."""

from __future__ import annotations

import functools
import itertools
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import make_url

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, uids
from tests.postgresql import Server
from trinity.buffer.records import Records
from trinity.buffer.store import ConsumerToken, ExperienceStore
from trinity.buffer.store.pruning import NewestSteps
from trinity.common.errors import StoreError
from trinity.explorer.proxy.record import CallRecord
from trinity.utils import database_errors

Call = Callable[[ExperienceStore, ConsumerToken], object]


def append(store: ExperienceStore, step: int, *, producer: str = PRODUCER) -> object:
    batch = [experience(step, task, turn=turn) for task in range(3) for turn in range(2)]
    return store.append(BUFFER, batch, run=RUN, producer=producer, explore_step=step, snapshot=f"after {step}")


def claim(store: ExperienceStore, token: ConsumerToken) -> list[str]:
    return uids(store.claim(token, 2, whole_rollouts=True))


CALLS: dict[str, Call] = {
    "append": lambda store, token: append(store, 3),
    "claim": claim,
    "read_batch": lambda store, token: uids(store.read_batch(token, 2, timeout_s=60).experiences),
    "commit": lambda store, token: store.commit_step(token, 2, claim(store, token)),
    "drop": lambda store, token: store.drop(token, claim(store, token), "stale"),
    "release": lambda store, token: store.release(token, claim(store, token)),
    "prune": lambda store, token: store.prune(token, 1),
    "prune_waiting": lambda store, token: store.prune_waiting(BUFFER, PRODUCER, NewestSteps(0), run=RUN),
    "open_consumer": lambda store, token: store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0).epoch,
    "close_producer": lambda store, token: store.close_producer(BUFFER, PRODUCER, run=RUN),
    "wait_for_room": lambda store, token: store.wait_for_room(BUFFER, PRODUCER, run=RUN, timeout_s=60),
}


IN_EVERY_RUN = {"append", "claim", "commit", "wait_for_room"}


@contextmanager
def begun(url: str) -> Iterator[tuple[ExperienceStore, ConsumerToken]]:
    """Yield a store with two explore steps, and a training step behind it."""
    with ExperienceStore(url, capacity=100) as store:
        store.open_producer(BUFFER, PRODUCER, run=RUN)
        append(store, 1)
        append(store, 2)
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        store.commit_step(token, 1, claim(store, token))
        yield store, token


@pytest.mark.parametrize("turn", [0, 1])
def test_a_rollout_is_claimed_whole_or_not_at_all_while_another_holds_one_of_its_rows(
    postgresql: Server, turn: int
) -> None:
    url = postgresql.database()
    with ExperienceStore(url) as store, ExperienceStore(url) as other:
        append(store, 1)  # three rollouts of two turns
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        ((first, second), *_) = [sorted(uids(store.claim(token, 1, whole_rollouts=True)))]
        store.release(token, [first, second])
        with other._database._engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            held = (first, second)[turn]
            connection.exec_driver_sql(f"SELECT id FROM experience WHERE uid = '{held}' FOR UPDATE")
            with ThreadPoolExecutor(1) as pool:  # it waits for nobody: the row is skipped
                got = pool.submit(lambda: uids(store.claim(token, 3, whole_rollouts=True))).result(timeout=30)
            assert len(got) == 4 and not {first, second} & set(got)
            assert store.claim(token, 1, whole_rollouts=True) == []
        assert sorted(uids(store.claim(token, 1, whole_rollouts=True))) == [first, second]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_others_store_while_rollouts_are_counted_does_not_matter(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Of the store and of a reader of its tables: both ask twice, and another process writes in between."""
    server = request.getfixturevalue("postgresql") if kind == "postgresql" else None
    url = f"sqlite:///{tmp_path}/experience.db" if server is None else server.database()
    with begun(url) as (store, _), ExperienceStore(url, capacity=100) as other:
        steps = itertools.count(3)
        records = Records(url)

        def in_between(connection: object, cursor: object, statement: str, *rest: object) -> None:
            if statement.startswith("SELECT fate.fate"):
                append(other, next(steps))

        for engine in (store._database._engine, records._engine):
            event.listen(engine, "after_cursor_execute", in_between)
        before = store.fates(BUFFER, run=RUN)
        between = records.fates(RUN)
        assert next(steps) == 5, "both were interrupted"
        after = store.fates(BUFFER, run=RUN)
        records.close()
    assert (before.issued, before.waiting) == (6, 4)
    assert (between[BUFFER].issued, after.issued) == (9, 12)


def tables(store: ExperienceStore) -> list[list[tuple[object, ...]]]:
    """Return all that a call can change, but for times."""
    names = "uid, state, claimed_by, trained_step, use_count, drop_reason, payload_bytes, length(experience_bytes)"
    queries = (
        f"select {names} from experience left join experience_blob using (id) order by uid",
        "select consumer, step, pos, uid from step_exp order by 1, 2, 3",
        "select producer, is_open, wait_version, finished_step from producer order by 1",
        "select producer, state, num_rollouts from producer_snapshot order by 1",
        "select consumer, epoch from consumer order by 1",
    )
    with store._database.read() as connection:
        return [[tuple(row) for row in connection.exec_driver_sql(query)] for query in queries]


@contextmanager
def restarting(
    server: Server, url: str, moment: str, *, at: int, then: Callable[[], None] | None = None
) -> Iterator[Callable[[], bool]]:
    """Kill and start the server when a database comes to a moment for the `at`-th time; yield whether it has come.

    Args:
        server: that has the database.
        url: of the database.
        moment: `before_cursor_execute` or `commit`; the server has not been told of it yet.
        at: from 1.
        then: what is done after that.
    """
    left = at

    def restart(connection: Connection, *_: object) -> None:
        nonlocal left
        if connection.engine.url.database != make_url(url).database:
            return
        left -= 1
        if left == 0:
            server.restart()
            if then is not None:
                then()

    event.listen(Engine, moment, restart)
    try:
        yield lambda: left <= 0
    finally:
        event.remove(Engine, moment, restart)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_EVERY_RUN else [pytest.mark.nightly]) for name in CALLS]
)
def test_a_call_ends_as_ever_whenever_the_server_restarts_in_it(name: str, postgresql: Server) -> None:
    """Before each of its statements once: killed and started again."""
    with begun(postgresql.database()) as (store, token):
        expected = CALLS[name](store, token), tables(store)
    at, has_come = 0, True
    while has_come:
        at += 1
        with begun(postgresql.database()) as (store, token):
            with restarting(postgresql, store.url, "before_cursor_execute", at=at) as came:
                result = CALLS[name](store, token)
            has_come = came()
            assert (result, tables(store)) == expected, f"restarted before statement {at}"
    assert at > 3


def opened(kind: str, url: str) -> None:
    """Open a store or a record of calls, and close it."""
    made = ExperienceStore(url) if kind == "store" else CallRecord(url, run=RUN, producer=PRODUCER, limit=9)
    made.open()
    made.close()


@pytest.mark.parametrize("kind", ["store", "record"])
def test_it_is_opened_whenever_the_server_restarts_in_it(kind: str, postgresql: Server) -> None:
    """Before each of its statements once: killed and started again."""
    at, has_come = 0, True
    while has_come:
        at, url = at + 1, postgresql.database()
        with restarting(postgresql, url, "before_cursor_execute", at=at) as came:
            opened(kind, url)
        has_come = came()
        opened(kind, url)
    assert at > 3


def write_elsewhere(url: str, times: int = 1) -> None:
    """Commit transactions of another process, which changes nothing after the first time."""
    with ExperienceStore(url) as other:
        for _ in range(times):
            other.open_producer("others", "another", run="of_others")


@pytest.mark.parametrize("name", CALLS)
def test_a_commit_that_the_server_crashes_in_is_done_once(name: str, postgresql: Server) -> None:
    """It has not begun to commit; the ids of its transactions are given to those of others after the restart."""
    url = postgresql.database()
    write_elsewhere(url)
    with begun(url) as (store, token):
        expected = CALLS[name](store, token), tables(store)
    at, has_come = 0, True
    while has_come:
        at, url = at + 1, postgresql.database()
        write_elsewhere(url)
        others = functools.partial(write_elsewhere, url, times=3)
        with begun(url) as (store, token):
            with restarting(postgresql, url, "commit", at=at, then=others) as came:
                result = CALLS[name](store, token)
            has_come = came()
            assert (result, tables(store)) == expected, f"crashed before commit {at}"
    assert at > 1


def test_a_commit_is_not_done_again_if_nobody_can_say_whether_it_was_done(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_errors, "PATIENCE_S", 0.5)
    commits = 0

    def stop(_: Connection) -> None:
        nonlocal commits
        commits += 1
        postgresql.stop()

    with begun(postgresql.database()) as (store, token):
        event.listen(store._database._engine, "commit", stop)
        try:
            with pytest.raises(
                StoreError, match="E5200.*was lost in a commit, and whether it was done cannot be asked"
            ):
                append(store, 3)
        finally:
            event.remove(store._database._engine, "commit", stop)
            postgresql.start()
        assert commits == 1
        append(store, 3)
        assert claim(store, token) == ["1/2/0/0/", "1/2/0/1/", "2/0/0/0/", "2/0/0/1/"]


class Cut:
    """Passes bytes to a server until a commit was passed on; its answer is lost with the connection."""

    def __init__(self, port: int) -> None:
        self.is_armed = False
        self.was_cut = threading.Event()
        self._port = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    (server if ready is client else client).sendall(data)
                    if self.is_armed and ready is client and b"COMMIT" in data.upper():
                        self.is_armed = False
                        server.recv(1)  # it has done it, and says so
                        self.was_cut.set()
                        return

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_commit_whose_answer_is_lost_is_not_done_twice(name: str, postgresql: Server) -> None:
    with begun(postgresql.database()) as (store, token):
        expected = CALLS[name](store, token), tables(store)
    cut = Cut(postgresql.port)
    try:
        url = postgresql.database()
        with begun(url.replace(f":{postgresql.port}/", f":{cut.port}/")) as (store, token):
            cut.is_armed = True
            result = CALLS[name](store, token)
            assert cut.was_cut.is_set()
            assert (result, tables(store)) == expected
    finally:
        cut.close()


def test_a_server_that_is_away_is_waited_for(postgresql: Server, caplog: pytest.LogCaptureFixture) -> None:
    with begun(postgresql.database()) as (store, token):
        postgresql.stop(signal.SIGINT)
        back = threading.Timer(1.0, postgresql.start)
        back.start()
        append(store, 3)
        back.join()
        assert claim(store, token) == ["1/2/0/0/", "1/2/0/1/", "2/0/0/0/", "2/0/0/1/"]
    told = [record.getMessage() for record in caplog.records if "cannot be reached" in record.getMessage()]
    assert len(told) == 1 and "trying again for 120 s" in told[0]


def test_a_server_that_stays_away_is_an_error_that_names_it(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_errors, "PATIENCE_S", 0.5)
    with begun(postgresql.database()) as (store, _):
        postgresql.stop()
        try:
            with pytest.raises(StoreError, match=r"E5212.*postgresql://trinity@127\.0\.0\.1.*cannot be reached"):
                append(store, 3)
        finally:
            postgresql.start()
        append(store, 3)


def test_a_server_that_never_was_there_is_an_error_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_errors, "FIRST_PATIENCE_S", 1.5)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://someone:secret@127.0.0.1:{nobody.getsockname()[1]}/experiences"
        began = time.monotonic()
        with pytest.raises(StoreError, match="E5212.*look at host, port, user and password") as caught:
            ExperienceStore(url).open()
        assert 1.5 <= time.monotonic() - began < database_errors.PATIENCE_S / 2
    assert "secret" not in str(caught.value) + caplog.text and caplog.text.count("trying again for 1.5 s") == 1


def test_a_store_is_opened_although_the_server_starts_again_just_then(postgresql: Server) -> None:
    url = postgresql.database()
    postgresql.stop()
    back = threading.Timer(1.0, postgresql.start)
    back.start()
    with begun(url) as (store, token):
        back.join()
        append(store, 3)
        assert claim(store, token)


def test_several_explorers_and_a_trainer_at_once_keep_every_rollout_whole(postgresql: Server) -> None:
    url, steps, tasks = postgresql.database(), 8, 150
    with begun(url):
        pass

    def explore(producer: str, first: int) -> None:
        with ExperienceStore(url) as store:
            for step in range(1, steps + 1):
                batch = [experience(first + step, task, turn=turn) for task in range(tasks) for turn in range(3)]
                store.append(BUFFER, batch, run=RUN, producer=producer, explore_step=step)
            store.close_producer(BUFFER, producer, run=RUN)

    with ExperienceStore(url) as store, ThreadPoolExecutor(2) as threads:
        for n in (1, 2):
            store.open_producer(BUFFER, f"explorer{n}", run=RUN)
        explorers = [threads.submit(explore, f"explorer{n}", 1000 * n) for n in (1, 2)]
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=1)
        store.commit_step(token, 2, claim(store, token) + claim(store, token))
        store.close_producer(BUFFER, PRODUCER, run=RUN)
        trained, step = [], 2
        while not (batch := store.read_batch(token, 70, timeout_s=60)).is_closed:
            step += 1
            rollouts = [uid.rsplit("/", 2)[0] for uid in uids(batch.experiences)]
            assert all(rollouts.count(each) == 3 for each in rollouts), "a rollout was claimed in parts"
            store.commit_step(token, step, uids(batch.experiences))
            trained += uids(batch.experiences)
        assert len(trained) == len(set(trained)) == 2 * steps * tasks * 3
        assert store.counts(BUFFER, RUN)["trained"] == len(trained) + 12
        for each in explorers:
            each.result()
