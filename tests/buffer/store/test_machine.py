"""Random histories of the store against a dictionary that says what must be true.

All histories are in one database, each under the name of a run of its own, so that none may see another.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.buffer.store.oracle import BUFFER, PRODUCER, experience, generated, uids
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


class Histories:
    """The database of all histories, and how long they are.

    Attributes:
        store: open.
        num_runs: histories that were begun.
        num_steps: rules that were applied, in all histories.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.store = ExperienceStore(url, busy_timeout_s=20.0).open()
        self.num_runs = 0
        self.num_steps = 0

    def reopen(self) -> None:
        """Close the store and open it again, as after a kill."""
        self.store.close()
        self.store = ExperienceStore(self._url, busy_timeout_s=20.0).open()


class StoreMachine(RuleBasedStateMachine):
    """`rows` maps each id, in the order of the log, to its state, owner and step."""

    def __init__(self, histories: Histories) -> None:
        super().__init__()
        self.histories = histories
        histories.num_runs += 1
        self.run = f"project/run{histories.num_runs}"
        self.rows: dict[str, Row] = {}
        self.tokens: dict[str, ConsumerToken] = {}
        self.old: list[ConsumerToken] = []
        self.steps = dict.fromkeys(CONSUMERS, 0)
        self.finished = 0
        self.is_ledger_asked = False  # reading all of it after every step is half of the time
        self.num_checks = 0

    @property
    def store(self) -> ExperienceStore:
        """The open store."""
        return self.histories.store

    @initialize()
    def open_consumers(self) -> None:
        for name in CONSUMERS:
            self.open_consumer(name, 0)

    def open_consumer(self, name: str, cut: int) -> None:
        if name in self.tokens:
            self.old.append(self.tokens[name])
        self.tokens[name] = self.store.open_consumer(BUFFER, name, run=self.run, cut=cut)

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
            result = self.store.append(BUFFER, batch, run=self.run, producer=PRODUCER, explore_step=step)
        except RuntimeError:
            result = None
            self.histories.reopen()
        finally:
            failpoints.configure("")
        is_kept = step > self.finished and kill != "before"
        if result is not None:
            assert (result.appended, result.duplicates) == ((len(batch), 0) if is_kept else (0, len(batch)))
        if is_kept:
            self.finished = step
            new = {uid: {"state": "ready", "owner": None, "step": 0, "expired": False} for uid in sorted(uids(batch))}
            self.rows.update(new)
        assert self.store.finished_step(BUFFER, PRODUCER, run=self.run) == self.finished

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
        self.is_ledger_asked = True
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
        self.is_ledger_asked = True
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
        self.is_ledger_asked = True
        try:
            self.store.commit_step(self.old[-1], 1000, [])
        except StoreError as error:
            assert error.code == "E5203"
        else:
            raise AssertionError("an old token could commit")

    @rule(name=which, back=st.integers(0, 3))
    def crash_and_resume(self, name: str, back: int) -> None:
        self.is_ledger_asked = True
        self.histories.reopen()
        cut = max(0, self.steps[name] - back)
        self.open_consumer(name, cut)
        self.steps[name] = cut
        for row in self.rows.values():
            used_later = row["state"] in ("trained", "dropped") and int(str(row["step"])) > cut
            if row["owner"] == name and (row["state"] == "claimed" or used_later):
                row.update(state="ready", owner=None, step=0, expired=False)

    @invariant()
    def counts_agree_and_nothing_is_lost(self) -> None:
        counts = self.store.counts(BUFFER, self.run)
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
        found, ends = self.store.fates(BUFFER, run=self.run), list(states.values())
        ended = {"trained": ends.count("trained"), "stale": ends.count("dropped")}
        assert {fate: n for fate, n in found.ended.items() if n} == {fate: n for fate, n in ended.items() if n}
        assert (found.issued, found.waiting) == (len(states), ends.count("ready") + ends.count("claimed"))

    @invariant()
    @precondition(lambda self: self.is_ledger_asked)
    def ledger_agrees(self) -> None:
        self.is_ledger_asked = False
        steps: dict[str, set[tuple[str, int]]] = {}
        for name, token in self.tokens.items():
            ledger = {step: self.store.step_uids(token, step) or [] for step in range(1, self.steps[name] + 1)}
            trained = [u for u, row in self.rows.items() if row["state"] == "trained" and row["owner"] == name]
            assert sorted(uid for found in ledger.values() for uid in found) == sorted(trained)
            for step, found in ledger.items():
                for uid in found:
                    steps.setdefault(rollout_of(uid), set()).add((name, step))
        assert all(len(used) == 1 for used in steps.values()), "a rollout is trained in one step only"

    @invariant()
    def steps_are_counted(self) -> None:
        self.num_checks += 1

    def teardown(self) -> None:
        self.histories.num_steps += max(0, self.num_checks - 1)  # the first comes before any rule
        self.ledger_agrees()


@pytest.mark.timeout(1200)  # a minute of this machine, and any number of minutes of a busy one
@pytest.mark.parametrize("num_steps", [2000, pytest.param(8000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_steps_of_any_history_agree_with_the_dictionary(kind: str, num_steps: int, tmp_path: Path) -> None:
    histories = Histories(f"sqlite:///{tmp_path}/experience.db" if kind == "sqlite" else shared().database())

    def begun() -> StoreMachine:
        return StoreMachine(histories)

    chosen = settings(
        max_examples=num_steps // 32,
        stateful_step_count=40,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    try:
        run_state_machine_as_test(begun, settings=chosen)  # type: ignore[no-untyped-call]
    finally:
        histories.store.close()
    assert histories.num_steps >= num_steps
