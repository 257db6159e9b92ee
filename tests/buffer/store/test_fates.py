"""What happened to every rollout: the numbers of the log, and when they do not add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, open_store, uids
from tests.postgresql import shared
from trinity.buffer.store import ExperienceStore, fates
from trinity.common.errors import StoreError


def test_what_became_of_rollouts_is_added_up_step_by_step_and_taken_back_at_a_cut(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        given = {"issued": 6, "failed/timeout": 1, "filtered/reward_filter": 1}
        rows = [experience(1, 0, run, turn=turn) for run in range(4) for turn in range(2)]
        first = store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1, counts=given)
        assert str(first.fates) == "6 issued = 0 trained + 1 failed/timeout + 1 filtered/reward_filter + 4 waiting"
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        claimed = uids(store.claim(token, 3, whole_rollouts=True))
        store.drop(token, claimed[:2], "stale")
        assert store.commit_step(token, 1, claimed[2:4]).metrics() == {
            "fate/stale": 1, "fate/trained": 1, "perf/fate/waiting": 2,
        }  # fmt: skip
        assert store.commit_step(token, 2, claimed[4:]).own == {"stale": 1, "trained": 2}
        # The producer explores its step again, with another outcome: what was counted stays.
        again = store.append(BUFFER, rows[:2], run=RUN, producer=PRODUCER, explore_step=1, counts={"issued": 1})
        assert again.fates.own == given and again.fates.ended["trained"] == 2
        store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=1)
        assert store.fates(BUFFER, run=RUN).ended["trained"] == 1
        assert store.fates(BUFFER, run=RUN).waiting == 2


def test_rollouts_that_do_not_add_up_are_an_error_that_names_the_numbers(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        rows = [experience(1, 0, run) for run in range(3)]
        with pytest.raises(StoreError, match=r"4 issued = 0 trained \+ 3 waiting, which is 3") as raised:
            store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1, counts={"issued": 4})
        assert raised.value.code == "E5213" and store.finished_step(BUFFER, PRODUCER, run=RUN) == 0
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
        with store._database.write() as connection:
            connection.exec_driver_sql("DELETE FROM experience WHERE run_id = 2")
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        with pytest.raises(StoreError, match=r"3 issued = 1 trained \+ 1 waiting, which is 2"):
            store.commit_step(token, 1, uids(store.claim(token, 1)))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_row_lost_of_thousands_that_wait_is_noticed_in_the_next_step(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/experience.db" if kind == "sqlite" else shared().database()
    with ExperienceStore(url, busy_timeout_s=20.0) as store:
        rows = [experience(1, 0, run) for run in range(4200)]
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        with store._database.write() as connection:
            connection.exec_driver_sql("DELETE FROM experience WHERE run_id = 4000")
        with pytest.raises(StoreError, match=r"4200 issued = 1 trained \+ 4198 waiting, which is 4199"):
            store.commit_step(token, 1, uids(store.claim(token, 1)))


def test_more_waiting_rollouts_than_are_counted_every_step_are_counted_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fates, "MAX_COUNTED", 2)
    monkeypatch.setattr(fates, "MAX_TIME_FRAC", 1e-9)  # never again in the time of this test
    with open_store(tmp_path) as store:
        store.append(BUFFER, [experience(1, 0, run) for run in range(9)], run=RUN, producer=PRODUCER, explore_step=1)
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        with store._database.write() as connection:
            connection.exec_driver_sql("DELETE FROM experience WHERE run_id = 8")
        assert store.commit_step(token, 1, uids(store.claim(token, 1))).waiting == 8  # what the totals say
        monkeypatch.setattr(fates, "_NEXT_COUNTS", type(fates._NEXT_COUNTS)())
        with pytest.raises(StoreError, match=r"9 issued = 2 trained \+ 6 waiting, which is 8"):
            store.commit_step(token, 2, uids(store.claim(token, 1)))
        with open_store(tmp_path) as other, pytest.raises(StoreError, match="which is 8"):
            other.fates(BUFFER, run=RUN)
