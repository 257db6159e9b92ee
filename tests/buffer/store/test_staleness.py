"""The staleness bound from what is in the log: one producer, several, and after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.conftest import make_experiences
from trinity.buffer.store import ExperienceStore
from trinity.buffer.store.staleness import StalenessBound, UntrainedRollouts
from trinity.common.errors import StarvedError

SCOPE = {"run": "p/n"}


def bound(limit: int, *, per_step: int = 8, batches: int = 1) -> StalenessBound:
    """Return the bound of batches of eight rollouts."""
    return StalenessBound(limit, rollouts=8, rollouts_per_step=per_step, max_batches=batches)


@pytest.mark.parametrize(
    ("untrained", "in_flight", "step"),
    [
        (UntrainedRollouts(0, 0, 0, 0), 0, 1),
        (UntrainedRollouts(3, 0, 0, 0), 0, 4),
        (UntrainedRollouts(3, 8, 0, 0), 0, 5),
        (UntrainedRollouts(3, 2, 0, 0), 0, 5),
        (UntrainedRollouts(3, 8, 8, 0), 1, 7),
        (UntrainedRollouts(3, 0, 3, 0), 0, 5),
        (UntrainedRollouts(3, 0, 0, 2), 0, 6),
    ],
)
def test_the_last_step_of_a_batch_counts_what_comes_before_it(
    untrained: UntrainedRollouts, in_flight: int, step: int
) -> None:
    assert untrained.last_step(bound(0), in_flight=in_flight) == step
    assert untrained.required_version(bound(2), in_flight=in_flight) == step - 3


def test_a_batch_of_two_steps_needs_weights_of_between() -> None:
    assert UntrainedRollouts(4, 0, 0, 0).required_version(bound(1, per_step=4), in_flight=0) == 4
    assert UntrainedRollouts(4, 0, 0, 0).required_version(bound(0, per_step=4), in_flight=0) == 5


@pytest.mark.parametrize("per_step", [4, 6, 8])
def test_as_many_batches_have_room_as_could_begin_one_after_the_other(per_step: int) -> None:
    limits = StalenessBound(3, rollouts=2, rollouts_per_step=per_step, max_batches=4)
    for untrained in (
        UntrainedRollouts(step, claimed, ready, busy)
        for step in (2, 4) for claimed in (0, per_step) for ready in (0, 3, 7) for busy in (0, 1)
    ):  # fmt: skip
        for version in range(5):
            begun = 0
            while version >= untrained.required_version(limits, in_flight=begun):
                begun += 1
            for in_flight in range(4):
                assert untrained.room(limits, version=version, in_flight=in_flight) == max(0, begun - in_flight)


def test_who_may_not_begin_waits_and_the_trainer_takes_what_there_is(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/experience.db") as store:
        store.open_producer("b", "one", **SCOPE)
        token = store.open_consumer("b", "trainer", cut=0, **SCOPE)
        assert (
            store.enter_batch("b", "one", version=0, bound=bound(0), **SCOPE).required_version(bound(0), in_flight=0)
            == 0
        )
        store.append("b", make_experiences(1)[:5], producer="one", explore_step=1, **SCOPE)
        untrained = store.enter_batch("b", "one", version=0, bound=bound(0), **SCOPE)
        assert untrained == UntrainedRollouts(0, 0, 5, 0) and untrained.required_version(bound(0), in_flight=0) == 1
        batch = store.read_batch(token, 8, timeout_s=5, trained_version=0)
        assert len(batch.experiences) == 5, "the producer waits, so that no more can come"
        assert store.enter_batch("b", "one", version=0, bound=bound(0), **SCOPE).claimed == 5
        store.commit_step(token, 1, [exp.eid.uid for exp in batch.experiences])
        assert store.enter_batch("b", "one", version=1, bound=bound(0), **SCOPE) == UntrainedRollouts(1, 0, 0, 0)


def test_who_waits_for_a_step_that_is_committed_and_not_published_is_waited_for(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/experience.db") as store:
        store.open_producer("b", "one", **SCOPE)
        token = store.open_consumer("b", "trainer", cut=0, **SCOPE)
        store.append("b", make_experiences(1), producer="one", explore_step=1, **SCOPE)
        batch = store.read_batch(token, 8, timeout_s=5, trained_version=0)
        store.commit_step(token, 1, [exp.eid.uid for exp in batch.experiences])
        untrained = store.enter_batch("b", "one", version=0, bound=bound(0), **SCOPE)
        assert untrained.awaited_version(bound(0), in_flight=0) == 1
        with pytest.raises(StarvedError):
            store.read_batch(token, 8, timeout_s=0.2, trained_version=1)


@pytest.mark.parametrize(("interval", "awaited"), [(1, 4), (2, 4), (3, 6), (5, 5)])
def test_who_waits_is_told_of_the_next_version_that_is_published(interval: int, awaited: int) -> None:
    limits = StalenessBound(0, rollouts=8, rollouts_per_step=8, interval=interval)
    assert UntrainedRollouts(4, 0, 0, 0).awaited_version(limits, in_flight=0) == awaited
    assert UntrainedRollouts(4, 0, 8, 0).awaited_version(limits, in_flight=0) == -(-5 // interval) * interval


def test_steps_of_another_job_that_takes_demonstrations_are_none_of_the_trainer(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/experience.db") as store:
        store.open_producer("b", "one", **SCOPE)
        store.append("b", make_experiences(1), producer="one", explore_step=1, **SCOPE)
        for name, step in (("other/job", 50), ("trainer", 1)):
            token = store.open_consumer("b", name, cut=0, **SCOPE)
            store.commit_step(token, step, [exp.eid.uid for exp in store.claim(token, 4)])
        assert store.enter_batch("b", "one", version=1, bound=bound(0), **SCOPE) == UntrainedRollouts(1, 0, 0, 0)


def test_a_second_producer_that_is_busy_counts_and_one_that_waits_does_not(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/experience.db") as store:
        for name in ("one", "two"):
            store.open_producer("b", name, **SCOPE)
        first = store.enter_batch("b", "one", version=0, bound=bound(1, batches=2), **SCOPE)
        assert first.busy == 1 and first.required_version(bound(1, batches=2), in_flight=0) == 1
        second = store.enter_batch("b", "two", version=0, bound=bound(1), **SCOPE)
        assert second.busy == 0, "the first waits for the next version"
        again = store.enter_batch("b", "one", version=0, bound=bound(1), **SCOPE)
        assert again.busy == 1 and again.required_version(bound(1), in_flight=0) == 0
