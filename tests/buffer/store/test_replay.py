"""Replay: which rollouts come again, when, how often, what leaves a full buffer, and what a resume restores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN, experience, generated, uids
from trinity.buffer.priority import PRIORITY_FUNC, ReplayItem
from trinity.buffer.store import ConsumerToken, ExperienceStore, Replay


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1.0e9

    def __call__(self) -> float:
        return self.now


Make = Callable[..., tuple[ExperienceStore, ConsumerToken]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(store_url: str, clock: Clock) -> Make:
    """Return what opens the store of this test with a producer and a trainer; a second call is a restart."""

    def opened(function: str = "linear_decay", *, cut: int = 0, keep: bool = False, **options: object):
        arguments = {name: options.pop(name) for name in ("decay", "use_count_limit", "sigma") if name in options}
        settings = {"cooldown_s": 0.0, "capacity": 100, "is_bounded": True} | options
        replay = Replay(PRIORITY_FUNC.get(function)(**arguments), **settings)
        store = ExperienceStore(store_url, replay=replay, clock=clock, kept_bytes=None if keep else 0).open()
        store.open_producer(BUFFER, PRODUCER, run=RUN)
        return store, store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=cut)

    return opened


def append(store: ExperienceStore, step: int, num: int, *, version: int | None = None) -> None:
    rows = [experience(step, task, version=step - 1 if version is None else version) for task in range(num)]
    store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=step)


def train(store: ExperienceStore, token: ConsumerToken, step: int, n: int, *, timeout_s: float = 0.0) -> list[str]:
    """Train a step on what a read gives; return `<explore step>/<task>` of its rollouts in their order."""
    batch = store.read_batch(token, n, timeout_s=timeout_s, trained_version=step - 1)
    store.commit_step(token, step, uids(batch.experiences))
    return [uid.rsplit("/", 3)[0] for uid in uids(batch.experiences)]


def test_the_newest_weights_come_first_and_every_use_costs_the_decay(make: Make) -> None:
    store, token = make(decay=1.5)
    append(store, 1, 2)
    assert train(store, token, 1, 2) == ["1/0", "1/1"]  # now 0 - 1.5
    append(store, 2, 2)  # 1
    assert train(store, token, 2, 3) == ["2/0", "2/1", "1/0"]  # now -0.5, -0.5, -3
    assert train(store, token, 3, 3) == ["2/0", "2/1", "1/1"]
    assert store.counts(BUFFER, RUN) == {"ready": 0, "claimed": 0, "trained": 4, "dropped": {}}


def test_a_rollout_comes_again_after_the_pause_and_not_before(make: Make, clock: Clock) -> None:
    store, token = make(cooldown_s=60.0)
    append(store, 1, 2)
    assert train(store, token, 1, 2) == ["1/0", "1/1"]
    clock.now += 59.0
    append(store, 2, 1)
    assert train(store, token, 2, 3) == ["2/0"]
    clock.now += 1.0
    assert train(store, token, 3, 3) == ["1/0", "1/1"], "60 s after step 1, and 1 s after the use of 2/0"
    clock.now += 3600.0
    assert train(store, token, 4, 3) == ["2/0", "1/0", "1/1"]


def test_a_rollout_is_used_as_often_as_the_limit_says(make: Make) -> None:
    store, token = make("decay_limit_randomization", use_count_limit=2)
    append(store, 1, 2)
    assert [train(store, token, step, 2) for step in (1, 2)] == [["1/0", "1/1"]] * 2
    assert str(store.fates(BUFFER, run=RUN)) == "2 issued = 2 trained + 0 waiting", "a second use is no second fate"
    store.close_producer(BUFFER, PRODUCER, run=RUN)
    assert store.read_batch(token, 2, timeout_s=0, trained_version=2).is_closed


@pytest.mark.difference("Replay buffer")
def test_the_noise_is_a_function_of_seed_task_and_use_and_its_spread_is_sigma() -> None:
    function = PRIORITY_FUNC.get("linear_decay_use_count_control_randomization")(decay=2.0, sigma=0.5)
    again = PRIORITY_FUNC.get("decay_limit_randomization")(decay=2.0, sigma=0.5)
    items = [ReplayItem(f"1/{task}", run, 5, 1) for task in range(2000) for run in (0, 1)]
    noise = [function(item)[0] - 3.0 for item in items]
    assert noise == [again(item)[0] - 3.0 for item in items]
    assert noise[::2] == noise[1::2], "the rollouts of a group keep together"
    mean = sum(noise) / len(noise)
    spread = (sum((one - mean) ** 2 for one in noise) / len(noise)) ** 0.5
    assert abs(mean) < 0.05 and abs(spread - 0.5) < 0.03
    again.seed = 1
    assert noise != [again(item)[0] - 3.0 for item in items]
    assert function(ReplayItem("1/0", 0, 5, 2))[0] + 2.0 != function(items[0])[0]


@pytest.mark.difference("A full queue")
def test_beyond_the_capacity_the_lowest_priority_leaves_and_is_counted(make: Make) -> None:
    store, token = make(capacity=3)
    append(store, 1, 2)
    train(store, token, 1, 2)
    append(store, 2, 2)
    batch = store.read_batch(token, 2, timeout_s=0, trained_version=1)
    assert (uids(batch.experiences), batch.evicted) == (["2/0/0/0/", "2/1/0/0/"], 1)
    store.commit_step(token, 2, uids(batch.experiences))
    assert store.counts(BUFFER, RUN)["trained"] == 4, "it was trained and is not used again"
    assert train(store, token, 3, 9) == ["2/0", "2/1", "1/0"]
    append(store, 3, 9, version=0)
    assert train(store, token, 4, 2) == ["3/0", "3/1"]
    counts = store.counts(BUFFER, RUN)
    assert counts["dropped"] == {"evicted": 6} and generated(counts) == 13
    found = store.fates(BUFFER, run=RUN)
    assert found.issued == 13 and sorted(found.ended) == ["filtered/evicted", "trained"]


def test_a_stale_rollout_that_was_trained_stays_trained_and_does_not_come_again(make: Make) -> None:
    store, token = make()
    append(store, 1, 2)
    train(store, token, 1, 2)
    append(store, 2, 1)
    batch = store.read_batch(token, 3, timeout_s=0, trained_version=1)
    store.drop(token, ["1/0/0/0/", "2/0/0/0/"], "stale")
    store.release(token, ["1/1/0/0/"])
    assert len(batch.experiences) == 3
    assert store.counts(BUFFER, RUN) == {"ready": 0, "claimed": 0, "trained": 2, "dropped": {"stale": 1}}
    assert train(store, token, 2, 3) == ["1/1"]


@pytest.mark.difference("Replay buffer")
def test_a_resume_restores_uses_pauses_and_what_left_the_buffer(make: Make, clock: Clock) -> None:
    options = {"function": "decay_limit_randomization", "use_count_limit": 2, "capacity": 5, "cooldown_s": 10.0}

    def steps(store: ExperienceStore, token: ConsumerToken, first: int) -> list[list[str]]:
        trained = []
        for step in range(first, 8):
            clock.now = 1.0e9 + 7.0 * step
            append(store, step, 2)
            trained.append(train(store, token, step, 3))
        return trained

    store, token = make(**options)
    whole = steps(store, token, 1)
    assert any(rollout.startswith("1/") for rollout in whole[2]), "14 s after their use they come again"
    for cut in (4, 2, 0):
        store.close()
        clock.now = 1.0e9 + 7.0 * cut
        store, token = make(**options, cut=cut)
        assert steps(store, token, cut + 1) == whole[cut:]


def test_payloads_that_may_be_used_again_are_kept_and_others_go(make: Make) -> None:
    store, token = make("decay_limit_randomization", use_count_limit=1)
    append(store, 1, 2)
    train(store, token, 1, 2)
    assert store.prune(token, 1) == 0, "not yet known to be spent"
    append(store, 2, 1)
    train(store, token, 2, 3)
    assert store.prune(token, 1) == 0, "they left before step 2: a checkpoint of step 1 could ask for them"
    assert store.prune(token, 2) == 2


def test_a_patient_reader_waits_until_the_producers_wait(make: Make) -> None:
    store, token = make(is_patient=True)
    append(store, 1, 4)
    assert store._try_read(token, 2, is_last=False, trained_version=0) is None
    store.announce_wait(BUFFER, PRODUCER, 1)
    assert len(store.read_batch(token, 2, timeout_s=60, trained_version=0).experiences) == 2


def test_a_patient_reader_takes_full_batches_of_a_service_which_never_waits(make: Make) -> None:
    """It would wait for that until its deadline, in every step."""
    store, token = make(is_patient=True)
    store.capacity = 4
    store.open_producer(BUFFER, PRODUCER, run=RUN, is_scheduled=False)
    append(store, 1, 4)
    assert store._try_read(token, 5, is_last=False, trained_version=0) is None, "more may come at any time"
    assert not store.wait_for_room(BUFFER, PRODUCER, timeout_s=0.0, run=RUN)
    train(store, token, 1, 2)
    assert train(store, token, 2, 2) == ["1/2", "1/3"], "nobody has asked for room since"
    assert store.wait_for_room(BUFFER, PRODUCER, timeout_s=0.0, run=RUN)
    append(store, 2, 4)
    for is_there in (False, True):
        store.note_presence(BUFFER, PRODUCER, is_there, run=RUN)
    assert train(store, token, 3, 2) == ["2/0", "2/1"], "it was taken for dead"


def test_without_a_bound_the_buffer_ends_with_its_last_new_rollout(make: Make, clock: Clock) -> None:
    store, token = make(is_bounded=False)
    append(store, 1, 2)
    train(store, token, 1, 2)
    append(store, 2, 1)
    store.close_producer(BUFFER, PRODUCER, run=RUN)
    assert train(store, token, 2, 3, timeout_s=60) == ["2/0", "1/0", "1/1"]
    assert store.read_batch(token, 3, timeout_s=60, trained_version=2).is_closed
    bounded, token = make(cut=2, cooldown_s=60.0)
    bounded.close_producer(BUFFER, PRODUCER, run=RUN)
    assert bounded._try_read(token, 3, is_last=False, trained_version=2) is None, "what is left cools down"
    clock.now += 60.0
    assert len(bounded.read_batch(token, 3, timeout_s=60, trained_version=2).experiences) == 3
