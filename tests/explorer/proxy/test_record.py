"""The record of mode serve: durable, bounded, rewarded once it is committed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from trinity.common.errors import StoreError, TrinityError
from trinity.explorer.proxy.record import Caller, CallRecord, Counts, FeedbackError, RecordedChoice, Rewarded
from trinity.utils import database_errors

IDS = [f"{number:032x}" for number in range(8)]


def choice(number: int, *, of: int = 0, caller: Caller | None = None) -> RecordedChoice:
    return RecordedChoice(IDS[number], of, caller or Caller(), f"payload {number}".encode())


@pytest.fixture
def record(tmp_path: Path) -> Iterator[CallRecord]:
    made = opened(tmp_path)
    yield made
    made.close()


def opened(folder: Path, *, producer: str = "proxy", limit: int = 4) -> CallRecord:
    return CallRecord(f"sqlite:///{folder / 'record.db'}", run="p/n", producer=producer, limit=limit).open()


def test_above_the_limit_the_oldest_calls_without_a_reward_go_and_are_counted(
    record: CallRecord, caplog: pytest.LogCaptureFixture
):
    record.add([choice(0), choice(1), choice(2)])
    record.reward(1.0, message_ids=[IDS[0]], caller=None)
    record.add([choice(3)])
    assert record.counts == Counts(waiting=3, rewarded=1) and record.dropped_count == 0
    record.add([choice(4), choice(5)])
    assert record.counts == Counts(waiting=3, rewarded=1) and record.dropped_count == 2
    assert "2 answered calls without a reward were dropped" in caplog.text and "history_limit" in caplog.text
    with pytest.raises(FeedbackError, match="one of the 2 dropped") as gone:
        record.reward(1.0, message_ids=[IDS[1]], caller=None)
    assert gone.value.status == 422
    assert record.reward(1.0, message_ids=[IDS[3], IDS[5]], caller=None) == Rewarded(2, 0)


def test_what_has_a_reward_is_never_dropped(record: CallRecord):
    record.add([choice(number) for number in range(4)])
    record.reward(1.0, message_ids=IDS[:4], caller=None)
    record.add([choice(4)])
    assert record.counts == Counts(waiting=0, rewarded=4) and record.dropped_count == 1


def test_a_reward_may_come_again_and_change_until_it_is_committed(record: CallRecord):
    record.add([choice(0), choice(1)])
    assert record.reward(0.5, message_ids=[IDS[0]], caller=None) == Rewarded(1, 0)
    assert record.reward(0.5, message_ids=[IDS[0], IDS[0]], caller=None) == Rewarded(0, 1)
    assert record.reward(0.7, message_ids=[IDS[0]], caller=None) == Rewarded(1, 0)
    (row,) = record.begin(1)
    assert (row.message_id, row.reward, bytes(row.experience_bytes)) == (IDS[0], 0.7, b"payload 0")
    with pytest.raises(FeedbackError, match=r"is committed with reward 0.7 \(explore step 1\)") as second:
        record.reward(0.8, message_ids=[IDS[1], IDS[0]], caller=None)
    assert second.value.status == 409 and record.counts == Counts(waiting=1, rewarded=0)
    record.finish(1)
    assert record.reward(0.7, message_ids=[IDS[0]], caller=None) == Rewarded(0, 1)
    with pytest.raises(FeedbackError, match="is committed"):
        record.reward(0.8, message_ids=[IDS[0]], caller=None)
    assert record.counts == Counts(waiting=1, rewarded=0)


def test_an_unknown_id_changes_nothing(record: CallRecord):
    record.add([choice(0), choice(0, of=1)])
    for unknown in (IDS[5], f"{IDS[0]}#2", f"{IDS[0]}#x", f"{IDS[0]}#{10**30}", "%", ""):
        with pytest.raises(FeedbackError, match="is recorded") as error:
            record.reward(1.0, message_ids=[IDS[0], unknown], caller=None)
        assert error.value.status == 422
    assert record.counts == Counts(waiting=2, rewarded=0)
    assert record.reward(1.0, message_ids=[f"{IDS[0]}#1"], caller=None) == Rewarded(1, 0)
    assert record.counts == Counts(waiting=1, rewarded=1)


def test_a_reward_of_a_run_is_that_of_its_calls_and_one_by_id_names_the_run(record: CallRecord):
    first, second = Caller("task", 0), Caller("task", 1)
    record.add([choice(0, caller=first), choice(1, caller=first), choice(2, caller=second), choice(3)])
    assert record.reward(1.0, message_ids=None, caller=first) == Rewarded(2, 0)
    with pytest.raises(FeedbackError, match="no call of task 'task', run 2") as unknown:
        record.reward(1.0, message_ids=None, caller=Caller("task", 2))
    assert unknown.value.status == 403
    record.reward(0.0, message_ids=[IDS[3]], caller=Caller("other", 7))
    assert [(row.task, row.run_id, row.reward) for row in record.begin(1)] == [
        ("task", 0, 1.0), ("task", 0, 1.0), ("other", 7, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize("foreign", [Caller("task", 1), Caller("other", 0), Caller("other", 7)])
def test_calls_of_a_run_are_not_moved_into_another_one(record: CallRecord, foreign: Caller):
    """All or nothing: the answers beside the foreign one, named by none or by `foreign`, keep what they had."""
    own = Caller("task", 0)
    record.add([choice(0, caller=own), choice(1), choice(2, caller=foreign), choice(3, caller=own)])
    record.reward(0.5, message_ids=[IDS[0]], caller=own)
    for ids in ([IDS[0]], [IDS[1], IDS[2], IDS[3]], [f"{IDS[3]}#0", IDS[1]]):
        with pytest.raises(FeedbackError, match="is of task 'task', run 0, not of task") as error:
            record.reward(1.0, message_ids=ids, caller=foreign)
        assert error.value.status == 403 and record.counts == Counts(waiting=3, rewarded=1)
    assert record.reward(0.7, message_ids=[IDS[0]], caller=None) == Rewarded(1, 0), "ids alone move nothing"
    for _ in range(2):  # what named no run is of the one that it was given, from then on
        record.reward(0.1, message_ids=[IDS[1], IDS[2]], caller=foreign)
    with pytest.raises(FeedbackError, match=f"is of task '{foreign.task}'"):
        record.reward(0.1, message_ids=[IDS[1]], caller=own)
    assert [(row.message_id, Caller(row.task, row.run_id), row.reward) for row in record.begin(1)] == [
        (IDS[0], own, 0.7), (IDS[1], foreign, 0.1), (IDS[2], foreign, 0.1),
    ]  # fmt: skip
    with pytest.raises(FeedbackError, match="is of task 'task'"):
        record.reward(0.7, message_ids=[IDS[0]], caller=foreign)


def test_a_step_that_was_begun_is_there_after_a_crash_and_can_be_undone(record: CallRecord, tmp_path: Path):
    record.add([choice(0), choice(1)])
    record.reward(1.0, message_ids=[IDS[0]], caller=None)
    assert record.begun() is None and [row.message_id for row in record.begin(3)] == [IDS[0]]
    record.close()
    again = opened(tmp_path)
    begun = again.begun()
    assert begun is not None and (begun[0], [row.message_id for row in begun[1]]) == (3, [IDS[0]])
    again.undo(3)
    again.reward(1.0, message_ids=[IDS[1]], caller=None)
    assert again.begun() is None and [row.message_id for row in again.begin(4)] == IDS[:2]
    again.finish(4)
    assert again.begun() is None and again.begin(5) == []
    again.close()


def test_committed_calls_are_known_up_to_the_limit_without_their_tokens(record: CallRecord, tmp_path: Path):
    for number in range(6):
        record.add([choice(number)])
        record.reward(1.0, message_ids=[IDS[number]], caller=None)
        record.begin(number + 1)
        record.finish(number + 1)
    with sqlite3.connect(tmp_path / "record.db") as connection:
        rows = connection.execute("select message_id, step, experience_bytes from proxy_history").fetchall()
    assert rows == [(IDS[number], number + 1, None) for number in range(2, 6)]
    with pytest.raises(FeedbackError, match="older than the last 4 committed"):
        record.reward(1.0, message_ids=[IDS[1]], caller=None)


def test_explorers_of_one_database_do_not_see_each_other(record: CallRecord, tmp_path: Path):
    other = opened(tmp_path, producer="second")
    record.add([choice(0)])
    with pytest.raises(FeedbackError):
        other.reward(1.0, message_ids=[IDS[0]], caller=None)
    assert other.counts == Counts(0, 0)
    other.close()


def test_a_table_of_another_program_is_refused(tmp_path: Path):
    with sqlite3.connect(tmp_path / "record.db") as connection:
        connection.execute("create table proxy_history (id integer, msg_id text, consumed integer)")
    with pytest.raises(StoreError, match="lacks choice, experience_bytes, message_id") as error:
        opened(tmp_path)
    assert error.value.code == "E5220"


@pytest.mark.parametrize(
    ("url", "code"), [("postgresql://someone@127.0.0.1:1/calls", "E5212"), ("sqlite:////proc/none/calls.db", "E3601")]
)
def test_a_database_that_cannot_be_used_is_named_by_its_own_key(url: str, code: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database_errors, "FIRST_PATIENCE_S", 0.0)
    with pytest.raises(TrinityError, match="explorer.db_url") as error:
        CallRecord(url, run="p/run", producer="explorer", limit=9).open()
    assert error.value.code == code and "experience_buffer" not in str(error.value)
