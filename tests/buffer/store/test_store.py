"""Append, claim, commit, drop, prune and resume of the experience log."""

from __future__ import annotations

import json
import math
import os
import random
import sqlite3
import stat
import time
from pathlib import Path

import pytest
import torch
from sqlalchemy import update

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, generated, open_store, uids
from trinity.buffer.store import ExperienceStore, JSONBackup
from trinity.buffer.store.dialect import file_system_type, refuse_network_file_system
from trinity.buffer.store.tables import BLOB
from trinity.common.errors import DataError, EnvironmentProblem, StoreError
from trinity.common.experience import EID, Experience
from trinity.trainer.auxiliary import consumer_of

BOTH = "experience join experience_blob using (id)"


@pytest.fixture
def store(store_url: str):
    with ExperienceStore(store_url, busy_timeout_s=20.0) as opened:
        yield opened


def append(store: ExperienceStore, step: int, num_tasks: int, *, version: int = 0):
    rows = [experience(step, task, version=version) for task in reversed(range(num_tasks))]
    return store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=step)


def open_consumer(store: ExperienceStore, *, cut: int = 0, consumer: str = CONSUMER):
    return store.open_consumer(BUFFER, consumer, run=RUN, cut=cut)


def test_claims_follow_the_log_which_is_sorted_by_id(store: ExperienceStore) -> None:
    append(store, 1, 12)
    append(store, 2, 2)
    token = open_consumer(store)
    first = store.claim(token, 10)
    assert uids(first) == [f"1/{task}/0/0/" for task in range(10)]
    assert [row.tokens.tolist() for row in first[:2]] == [[1, 0, 0, 7], [1, 1, 0, 7]]
    assert uids(store.claim(token, 10)) == ["1/10/0/0/", "1/11/0/0/", "2/0/0/0/", "2/1/0/0/"]
    assert store.claim(token, 10) == []


def test_a_repeated_append_changes_nothing(store: ExperienceStore) -> None:
    assert append(store, 1, 4).appended == 4
    token = open_consumer(store)
    store.commit_step(token, 1, uids(store.claim(token, 2)))
    again = append(store, 1, 5)
    assert (again.appended, again.duplicates) == (0, 5)
    assert store.counts(BUFFER, RUN) == {"ready": 2, "claimed": 0, "trained": 2, "dropped": {}}


def test_a_finished_step_that_is_explored_again_with_other_turns_stays_as_it_was(store: ExperienceStore) -> None:
    """What a killed explorer explores again is not what was stored, and what was stored may be trained already."""
    turns = [experience(2, 0, turn=turn) for turn in range(2)]
    scope = {"run": RUN, "producer": PRODUCER}
    append(store, 1, 1)
    store.append(BUFFER, turns, explore_step=2, snapshot="after 2", **scope)
    token = open_consumer(store)
    store.commit_step(token, 1, uids(store.claim(token, 2, whole_rollouts=True)))
    for step in (1, 2):
        longer = [experience(step, task, turn=turn) for task in range(2) for turn in range(4)]
        again = store.append(BUFFER, longer, explore_step=step, snapshot=f"again {step}", **scope)
        assert (again.appended, again.duplicates) == (0, 8)
    assert store.snapshot(BUFFER, PRODUCER, run=RUN) == "after 2"
    assert store.num_produced(BUFFER, run=RUN) == 2
    assert store.claim(token, 10) == []
    assert store.counts(BUFFER, RUN) == {"ready": 0, "claimed": 0, "trained": 3, "dropped": {}}
    new = store.append(BUFFER, [experience(2, 0)], run=RUN, producer="another", explore_step=2)
    assert (new.appended, new.duplicates) == (0, 1), "another producer's step is another one, its ids are not"


def test_runs_stages_and_buffers_do_not_see_each_other(store: ExperienceStore) -> None:
    places = [("a", "", "x"), ("b", "", "x"), ("a", "sft", "x"), ("a", "", "y")]
    for run, stage, buffer in places:
        rows = [experience(1, 0)]
        assert store.append(buffer, rows, run=run, stage=stage, producer=PRODUCER, explore_step=1).appended == 1
    for run, stage, buffer in places:
        token = store.open_consumer(buffer, CONSUMER, run=run, stage=stage, cut=0)
        assert len(store.claim(token, 10)) == 1


def test_an_explore_step_is_finished_with_its_append(store: ExperienceStore) -> None:
    assert store.finished_step(BUFFER, PRODUCER, run=RUN) == 0
    append(store, 1, 1)
    store.append(BUFFER, [], run=RUN, producer=PRODUCER, explore_step=2)
    append(store, 1, 1)
    assert store.finished_step(BUFFER, PRODUCER, run=RUN) == 2


@pytest.mark.parametrize("reward", [math.nan, math.inf, None, True, "1.0", [1.0]])
def test_a_reward_that_is_no_finite_number_is_refused_whole(store: ExperienceStore, reward: object) -> None:
    bad = experience(1, 3)
    bad.reward = reward  # type: ignore[assignment]
    with pytest.raises(DataError, match="task 1/3, run 0: the reward must be a finite number"):
        store.append(BUFFER, [experience(1, 0), bad], run=RUN, producer=PRODUCER, explore_step=1)
    assert generated(store.counts(BUFFER, RUN)) == 0
    assert store.finished_step(BUFFER, PRODUCER, run=RUN) == 0


def test_what_was_not_sampled_needs_no_reward(store: ExperienceStore) -> None:
    expert = Experience(eid=EID(1, 0), tokens=torch.tensor([1, 2]), prompt_length=1)
    assert store.append(BUFFER, [expert], run=RUN, producer=PRODUCER, explore_step=1).appended == 1


def test_two_experiences_with_one_id_are_refused(store: ExperienceStore) -> None:
    rows = [experience(1, 0), experience(1, 0)]
    with pytest.raises(DataError, match="the id 1/0/0/0/; give every turn"):
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)


def test_an_oversize_experience_is_set_aside_and_counted(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db", max_experience_bytes=4096) as store:
        big = experience(1, 1)
        big.response_text = "x" * 5000
        result = store.append(BUFFER, [experience(1, 0), big], run=RUN, producer=PRODUCER, explore_step=1)
        assert (result.appended, result.quarantined) == (1, 1)
        assert store.counts(BUFFER, RUN)["dropped"] == {"oversize": 1}
        assert uids(store.claim(open_consumer(store, cut=0), 5)) == ["1/0/0/0/"]
        assert store.counts(BUFFER, RUN)["dropped"] == {"oversize": 1}


@pytest.mark.difference("Queue after a crash")
def test_resuming_at_a_cut_returns_later_steps_and_claims_and_keeps_the_rest(store: ExperienceStore) -> None:
    append(store, 1, 9)
    token = open_consumer(store)
    other = open_consumer(store, consumer="other")
    for step in (1, 2):
        store.commit_step(token, step, uids(store.claim(token, 2)))
    dropped = uids(store.claim(token, 1))
    store.drop(token, dropped, "stale")
    store.claim(token, 1)
    kept = store.claim(other, 1)
    assert store.counts(BUFFER, RUN) == {"ready": 2, "claimed": 2, "trained": 4, "dropped": {"stale": 1}}
    token = open_consumer(store, cut=1)
    assert store.counts(BUFFER, RUN) == {"ready": 6, "claimed": 1, "trained": 2, "dropped": {}}
    assert store.step_uids(token, 1) == ["1/0/0/0/", "1/1/0/0/"] and store.step_uids(token, 2) is None
    assert uids(store.claim(token, 3)) == ["1/2/0/0/", "1/3/0/0/", *dropped]
    store.commit_step(other, 1, uids(kept))


def test_what_was_dropped_for_the_step_under_way_is_ready_again_after_its_crash(store: ExperienceStore) -> None:
    append(store, 1, 4)
    token = open_consumer(store)
    store.drop(token, uids(store.claim(token, 1)), "stale")
    store.commit_step(token, 1, uids(store.claim(token, 2)))
    store.drop(token, uids(store.claim(token, 1)), "stale")
    open_consumer(store, cut=1)
    assert store.counts(BUFFER, RUN) == {"ready": 1, "claimed": 0, "trained": 2, "dropped": {"stale": 1}}


def test_an_older_token_is_fenced_everywhere(store: ExperienceStore) -> None:
    append(store, 1, 4)
    zombie = open_consumer(store)
    rows = uids(store.claim(zombie, 2))
    open_consumer(store)
    for call in (
        lambda: store.commit_step(zombie, 1, rows),
        lambda: store.claim(zombie, 1),
        lambda: store.drop(zombie, rows, "late"),
        lambda: store.release(zombie, rows),
        lambda: store.prune(zombie, 1),
        lambda: store.read_batch(zombie, 1, timeout_s=1),
    ):
        with pytest.raises(StoreError, match=r"E5203.*replaced by a newer process \(epoch 2\)"):
            call()
    assert store.counts(BUFFER, RUN)["ready"] == 4


def test_an_expired_lease_passes_to_another_consumer_and_the_late_commit_fails(store: ExperienceStore) -> None:
    append(store, 1, 2)
    slow, fast = open_consumer(store, consumer="slow"), open_consumer(store, consumer="fast")
    held = uids(store.claim(slow, 2))
    assert store.claim(fast, 2) == [], "a lease that lasts"
    store.release(slow, held)
    late = uids(store.claim(slow, 2, lease_s=-1.0))
    assert store.claim(slow, 2) == [], "a consumer must not get its own rows twice"
    assert uids(store.claim(fast, 1)) == late[:1]
    with pytest.raises(StoreError, match="1 of them are not claimed by 'slow'"):
        store.commit_step(slow, 1, late)
    assert store.counts(BUFFER, RUN)["trained"] == 0
    store.commit_step(slow, 1, late[1:])
    store.commit_step(fast, 1, late[:1])
    assert store.counts(BUFFER, RUN)["trained"] == 2


def test_committing_a_step_again_is_allowed_only_with_the_same_rows(store: ExperienceStore) -> None:
    append(store, 1, 3)
    token = open_consumer(store)
    rows = uids(store.claim(token, 2))
    store.commit_step(token, 1, rows)
    store.commit_step(token, 1, rows)
    more = uids(store.claim(token, 1))
    with pytest.raises(StoreError, match="training step 1 was already committed"):
        store.commit_step(token, 1, more)
    store.release(token, more)
    assert store.counts(BUFFER, RUN) == {"ready": 1, "claimed": 0, "trained": 2, "dropped": {}}


def test_pruning_keeps_what_a_resume_can_ask_for(store: ExperienceStore) -> None:
    append(store, 1, 4)
    token = open_consumer(store)
    for step in (1, 2):
        store.commit_step(token, step, uids(store.claim(token, 2)))
    assert store.prune(token, 1) == 2
    assert store.prune(token, 1) == 0
    assert len(store.claim(open_consumer(store, cut=1), 4)) == 2
    with pytest.raises(StoreError, match="cannot go back to training step 0: the payloads of 2 experiences"):
        open_consumer(store, cut=0)


def test_a_database_that_the_user_named_keeps_its_payloads(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/mine.db", kept_bytes=None) as store:
        append(store, 1, 2)
        token = open_consumer(store)
        store.commit_step(token, 1, uids(store.claim(token, 2)))
        assert store.prune(token, 1) == 0
        assert len(store.claim(open_consumer(store, cut=0), 4)) == 2


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_payloads_of_the_newest_steps_stay_as_far_as_they_fit(tmp_path: Path, seed: int, is_reopened: bool) -> None:
    """After every step, against an account of what was trained: whole steps go, the oldest first, and no more."""
    draw, sizes, dropped, cut = random.Random(seed), {}, 0, 0
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db", kept_bytes=3000) as store:
        token = open_consumer(store)
        for step in range(1, 25):
            number = draw.randint(1, 3)
            append(store, step, number)
            rows = uids(store.claim(token, number))
            if number == 3 and draw.random() < 0.5:
                store.drop(token, [rows.pop()], "stale")
                dropped += 1
            store.commit_step(token, step, rows)
            with sqlite3.connect(tmp_path / "e.db") as found:
                size = f"select sum(length(experience_bytes)) from {BOTH} where trained_step = ?"
                sizes[step] = found.execute(size, (step,)).fetchone()[0]
            found.close()
            needed = draw.randint(0, 2)  # steps that a checkpoint may still ask for
            cut = max(cut, step - needed)
            store.prune(token, cut)
            gone, total = 0, 0
            for each in range(cut, 0, -1):
                total += sizes[each]
                gone = max(gone, each if total > 3000 else 0)
            with sqlite3.connect(tmp_path / "e.db") as found:
                kept = f"select distinct trained_step from {BOTH} order by 1"
                assert [row[0] for row in found.execute(kept)] == list(range(gone + 1, step + 1))
            found.close()
            if is_reopened:
                token = open_consumer(store, cut=step)
        assert gone > 10 and dropped


def test_that_payloads_go_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db", kept_bytes=1) as store:
        token = open_consumer(store)
        for step in (1, 2):
            append(store, step, 1)
            store.commit_step(token, step, uids(store.claim(token, 1)))
            assert store.prune(token, step) == 1
    told = [record.getMessage() for record in caplog.records if "buffer.keep_payloads" in record.getMessage()]
    assert len(told) == 1 and "up to step 1" in told[0]


def test_a_damaged_row_is_set_aside_and_the_others_stay(store: ExperienceStore) -> None:
    append(store, 1, 3)
    with store._database.write() as connection:
        damaged = update(BLOB).where(BLOB.c.id == 2)
        connection.execute(damaged.values(experience_bytes=bytes.fromhex("80049500")))
    token = open_consumer(store)
    with pytest.raises(DataError, match=r"E5101.*row 2 \(1/1/0/0/\)"):
        store.claim(token, 3)
    assert store.counts(BUFFER, RUN) == {"ready": 2, "claimed": 0, "trained": 0, "dropped": {"unreadable": 1}}
    assert uids(store.claim(token, 3)) == ["1/0/0/0/", "1/2/0/0/"]


def test_the_backup_holds_text_reward_and_metrics_once(tmp_path: Path) -> None:
    backup = JSONBackup(tmp_path / "sub" / "copy.jsonl")
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db", backup=backup) as store:
        append(store, 1, 2)
        append(store, 1, 3)
        append(store, 2, 1)
    lines = [json.loads(line) for line in backup.path.read_text().splitlines()]
    assert [line["uid"] for line in lines] == ["1/0/0/0/", "1/1/0/0/", "2/0/0/0/"]
    assert (lines[0]["prompt_text"], lines[0]["response_text"], lines[0]["reward"]) == ("p1.0", "r0", 1.0)
    assert stat.S_IMODE(os.stat(backup.path).st_mode) == 0o600


def test_the_database_is_private_durable_and_write_ahead(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, 1, 1)
    for name in ("experience.db", "experience.db-wal"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600
    with store, store._database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_database_of_another_version_or_program_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with sqlite3.connect(tmp_path / "experience.db") as connection:
        connection.execute("UPDATE trinity_schema SET version = 1")
    connection.close()
    with pytest.raises(StoreError, match="schema version 1, this program reads version 5"):
        open_store(tmp_path)
    with sqlite3.connect(tmp_path / "foreign.db") as connection:
        connection.execute("CREATE TABLE experience (id INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match="a table `experience` that this program did not make"):
        ExperienceStore(f"sqlite:///{tmp_path}/foreign.db").open()
    (tmp_path / "text.db").write_text("this is not a database, just a text file of some length" * 20)
    with pytest.raises(StoreError, match=r"E5200.*file is not a database$"):
        ExperienceStore(f"sqlite:///{tmp_path}/text.db").open()


def test_who_trained_last_is_known_and_neither_a_reader_nor_another_job_is_taken_for_it(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        assert store.last_trainer(BUFFER, run=RUN) is None
        append(store, 1, 3)
        others = [consumer_of(job) for job in ("project/of demonstrations", "p" * 300)]
        for number, name in enumerate(("first", "second", *others), start=1):
            token = open_consumer(store, consumer=name)
            store.commit_step(token, number, uids(store.claim(token, 1)))
        store.claim(open_consumer(store, consumer="reader"), 1)
        assert store.last_trainer(BUFFER, run=RUN) == "second"
        assert store.last_trainer(BUFFER, run="another") is None is store.last_trainer("other", run=RUN)


def test_a_store_that_another_process_holds_says_how_long_it_waited(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db", busy_timeout_s=0.05) as store:
        holder = sqlite3.connect(tmp_path / "e.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"E5200.*locked \(waited up to 0.05 s for other processes\)$"):
            store.open_producer(BUFFER, PRODUCER, run=RUN)
        holder.close()
        store.open_producer(BUFFER, PRODUCER, run=RUN)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d", "not a url"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(StoreError, match="E5201") as caught:
        ExperienceStore(url).open()
    assert "secret" not in str(caught.value)


def test_a_locked_database_is_waited_for_and_then_an_error(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/e.db", busy_timeout_s=0.2) as store:
        blocker = sqlite3.connect(tmp_path / "e.db", isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        with pytest.raises(StoreError, match=r"database is locked \(waited up to 0.2 s"):
            append(store, 1, 1)
        assert 0.15 < time.monotonic() - started < 30
        blocker.close()
        assert append(store, 1, 1).appended == 1


def test_a_removed_database_is_noticed_and_not_made_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / "experience.db").rename(tmp_path / "moved.db")
    with pytest.raises(StoreError, match="removed or replaced while in use"):
        append(store, 1, 1)
    assert not (tmp_path / "experience.db").exists()
    store.close()


def test_a_closed_store_and_a_folder_without_permission_are_errors(tmp_path: Path, store: ExperienceStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.counts(BUFFER, RUN)
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="E3601"):
        ExperienceStore(f"sqlite:///{tmp_path}/file/e.db").open()


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "cifs"])
def test_network_file_systems_are_refused_for_sqlite(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path}/my\\040share {kind} rw 0 0\n")
    share = tmp_path / "my share" / "e.db"
    with pytest.raises(EnvironmentProblem, match=rf"E3604.*\({kind}\).*postgresql://"):
        refuse_network_file_system(share, mounts=mounts)
    refuse_network_file_system(tmp_path / "e.db", mounts=mounts)
    assert file_system_type(tmp_path / "e.db", mounts=mounts) == "ext4"
    assert file_system_type(tmp_path, mounts=tmp_path / "absent") == ""
