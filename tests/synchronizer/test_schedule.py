"""The fixed schedule against worked timelines."""

from __future__ import annotations

import pytest

from trinity.synchronizer.schedule import FixedSchedule


def test_interval_one_is_strictly_on_policy():
    schedule = FixedSchedule(explorer_interval=1, trainer_interval=1, offset=0)
    assert [schedule.version_for(k) for k in (1, 2, 3, 10)] == [0, 1, 2, 9]


def test_one_step_offset_serves_weights_one_step_older():
    schedule = FixedSchedule(explorer_interval=1, trainer_interval=1, offset=1)
    assert [schedule.version_for(k) for k in (1, 2, 3, 4)] == [0, 0, 1, 2]


def test_interval_ten_changes_weights_after_steps_ten_and_twenty():
    schedule = FixedSchedule(explorer_interval=10, trainer_interval=10, offset=0)
    assert [schedule.version_for(k) for k in (1, 10, 11, 20, 21)] == [0, 0, 10, 10, 20]


def test_two_optimizer_steps_a_rollout_advance_the_version_by_two():
    schedule = FixedSchedule(explorer_interval=1, trainer_interval=2, offset=0)
    assert [schedule.version_for(k) for k in (1, 2, 3)] == [0, 2, 4]
    assert [schedule.is_published(s) for s in (1, 2, 3, 4)] == [False, True, False, True]


@pytest.mark.parametrize(("interval", "offset"), [(1, 0), (3, 0), (2, 1), (4, 3)])
def test_a_version_is_never_newer_than_what_the_trainer_can_have_published(interval: int, offset: int):
    schedule = FixedSchedule(explorer_interval=interval, trainer_interval=interval, offset=offset)
    for step in range(1, 40):
        version = schedule.version_for(step)
        assert version == 0 or schedule.is_published(version)
        assert version <= step - 1, "the trainer cannot have trained on a step that was not yet explored"
