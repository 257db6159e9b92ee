"""Random histories of the store against a dictionary that says what must be true."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.buffer.store.oracle import BUFFER, PRODUCER, RUN, experience, generated, uids
from tests.postgresql import shared
from trinity.buffer.store import ConsumerToken, ExperienceStore
from trinity.common.errors import StoreError
from trinity.utils import failpoints

CONSUMERS = ("one", "two")
Row = dict[str, object]
which = st.sampled_from(CONSUMERS)


def rollout_of(uid: str) -> str:
    """Return batch, task and run of an id."""
    return uid.rsplit("/", 2)[0]


def first_rollouts(ordered: list[str], n: int) -> list[str]:
    """Return the ids of the first `n` rollouts."""
    names = list(dict.fromkeys(rollout_of(uid) for uid in ordered))[:n]
    return [uid for uid in ordered if rollout_of(uid) in names]


class StoreMachine(RuleBasedStateMachine):
    """`rows` maps each id, in the order of the log, to its state, owner and step."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store"))
        self.url = self.new_url()
        self.store = self.open_store()
        self.rows: dict[str, Row] = {}
        self.tokens: dict[str, ConsumerToken] = {}
        self.old: list[ConsumerToken] = []
        self.steps = dict.fromkeys(CONSUMERS, 0)
        self.finished = 0

    def new_url(self) -> str:
        """Return the URL of an empty database."""
        return f"sqlite:///{self.folder}/experience.db"

    def open_store(self) -> ExperienceStore:
        """Return the open store."""
        return ExperienceStore(self.url, busy_timeout_s=20.0).open()

    @initialize()
    def open_consumers(self) -> None:
        for name in CONSUMERS:
            self.open_consumer(name, 0)

    def open_consumer(self, name: str, cut: int) -> None:
        if name in self.tokens:
            self.old.append(self.tokens[name])
        self.tokens[name] = self.store.open_consumer(BUFFER, name, run=RUN, cut=cut)

    @rule(
        step=st.integers(1, 9),
        turns=st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=6),
        kill=st.sampled_from(["", "before", "after"]),
    )
    def explore(self, step: int, turns: dict[int, int], kill: str) -> None:
        """Append the next step, or an earlier one again as after a kill: with other tasks and other turns."""
        step = min(step, self.finished + 1)
        batch = [experience(step, task, turn=turn) for task, number in turns.items() for turn in range(number)]
        failpoints.configure(f"store.append.{kill}_commit=raise" if kill else "")
        try:
            result = self.store.append(BUFFER, batch, run=RUN, producer=PRODUCER, explore_step=step)
        except RuntimeError:
            result = None
            self.store.close()
            self.store = self.open_store()
        finally:
            failpoints.configure("")
        is_kept = step > self.finished and kill != "before"
        if result is not None:
            assert (result.appended, result.duplicates) == ((len(batch), 0) if is_kept else (0, len(batch)))
        if is_kept:
            self.finished = step
            new = {uid: {"state": "ready", "owner": None, "step": 0, "expired": False} for uid in sorted(uids(batch))}
            self.rows.update(new)
        assert self.store.finished_step(BUFFER, PRODUCER, run=RUN) == self.finished

    @rule(name=which, n=st.integers(1, 5), expires=st.booleans())
    def claim(self, name: str, n: int, expires: bool) -> None:
        free = [
            uid
            for uid, row in self.rows.items()
            if row["state"] == "ready" or (row["state"] == "claimed" and row["expired"] and row["owner"] != name)
        ]
        got = self.store.claim(self.tokens[name], n, lease_s=-1.0 if expires else 3600.0, whole_rollouts=True)
        assert uids(got) == first_rollouts(free, n)
        for uid in first_rollouts(free, n):
            self.rows[uid] = {"state": "claimed", "owner": name, "step": 0, "expired": expires}

    def claimed_by(self, name: str, n: int = 1000) -> list[str]:
        mine = [uid for uid, row in self.rows.items() if row["state"] == "claimed" and row["owner"] == name]
        return first_rollouts(mine, n)

    @rule(name=which, n=st.integers(0, 4))
    def commit(self, name: str, n: int) -> None:
        mine = self.claimed_by(name, n)
        self.steps[name] += 1
        self.store.commit_step(self.tokens[name], self.steps[name], mine)
        for uid in mine:
            self.rows[uid] |= {"state": "trained", "step": self.steps[name]}

    @rule(name=which, n=st.integers(1, 2))
    def drop(self, name: str, n: int) -> None:
        mine = self.claimed_by(name, n)
        self.store.drop(self.tokens[name], mine, "stale")
        for uid in mine:
            self.rows[uid] |= {"state": "dropped", "step": self.steps[name] + 1}

    @rule(name=which)
    @precondition(lambda self: any(row["state"] != "claimed" for row in self.rows.values()))
    def commit_of_unclaimed_rows_fails_whole(self, name: str) -> None:
        free = next(uid for uid, row in self.rows.items() if row["state"] != "claimed")
        try:
            self.store.commit_step(self.tokens[name], 1000, [*self.claimed_by(name), free])
        except StoreError as error:
            assert error.code == "E5204"
        else:
            raise AssertionError("rows that are not claimed were committed")

    @rule()
    @precondition(lambda self: bool(self.old))
    def zombie_is_fenced(self) -> None:
        try:
            self.store.commit_step(self.old[-1], 1000, [])
        except StoreError as error:
            assert error.code == "E5203"
        else:
            raise AssertionError("an old token could commit")

    @rule(name=which, back=st.integers(0, 3))
    def crash_and_resume(self, name: str, back: int) -> None:
        self.store.close()
        self.store = self.open_store()
        cut = max(0, self.steps[name] - back)
        self.open_consumer(name, cut)
        self.steps[name] = cut
        for row in self.rows.values():
            used_later = row["state"] in ("trained", "dropped") and int(str(row["step"])) > cut
            if row["owner"] == name and (row["state"] == "claimed" or used_later):
                row.update(state="ready", owner=None, step=0, expired=False)

    @invariant()
    def counts_agree_and_nothing_is_lost(self) -> None:
        counts = self.store.counts(BUFFER, RUN)
        states = [row["state"] for row in self.rows.values()]
        for state in ("ready", "claimed", "trained"):
            assert counts[state] == states.count(state)  # type: ignore[literal-required]
        assert sum(counts["dropped"].values()) == states.count("dropped")
        assert generated(counts) == len(self.rows)

    @invariant()
    def every_rollout_has_one_fate(self) -> None:
        states: dict[str, str] = {}
        for uid, row in self.rows.items():
            states.setdefault(rollout_of(uid), str(row["state"]))
        found, ends = self.store.fates(BUFFER, run=RUN), list(states.values())
        ended = {"trained": ends.count("trained"), "stale": ends.count("dropped")}
        assert {fate: n for fate, n in found.ended.items() if n} == {fate: n for fate, n in ended.items() if n}
        assert (found.issued, found.waiting) == (len(states), ends.count("ready") + ends.count("claimed"))

    @invariant()
    def ledger_agrees(self) -> None:
        for name, token in self.tokens.items():
            ledger = [uid for step in range(1, self.steps[name] + 1) for uid in self.store.step_uids(token, step) or []]
            trained = [u for u, row in self.rows.items() if row["state"] == "trained" and row["owner"] == name]
            assert sorted(ledger) == sorted(trained)

    @invariant()
    def no_rollout_is_trained_in_two_steps(self) -> None:
        steps: dict[str, set[tuple[object, object]]] = {}
        for uid, row in self.rows.items():
            if row["state"] == "trained":
                steps.setdefault(rollout_of(uid), set()).add((row["owner"], row["step"]))
        assert all(len(used) == 1 for used in steps.values())

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


class PostgreSQLStoreMachine(StoreMachine):
    """The same on a PostgreSQL server."""

    def new_url(self) -> str:
        """Return the URL of an empty database."""
        return shared().database()


TestStoreMachine = StoreMachine.TestCase
TestPostgreSQLStoreMachine = PostgreSQLStoreMachine.TestCase
TestStoreMachine.settings = TestPostgreSQLStoreMachine.settings = settings(
    max_examples=100,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
# Two thousand steps take a minute or two of this machine, and any number of minutes of a busy one.
TestStoreMachine.pytestmark = TestPostgreSQLStoreMachine.pytestmark = [pytest.mark.timeout(1200)]
