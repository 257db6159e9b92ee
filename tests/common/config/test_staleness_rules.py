"""Sync styles and the bound on staleness: what fits together, and what is filled in."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from tests.common.config.test_resolve import only

STYLE = "synchronizer.sync_style=fully_async"
LIMIT = "synchronizer.max_staleness"


@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        ((f"{LIMIT}=1",), "E1805", LIMIT),
        (("synchronizer.update_in_flight=true",), "E1805", "synchronizer.update_in_flight"),
        ((STYLE, "deterministic=true", "synchronizer.update_in_flight=true"), "E1805", "synchronizer.update_in_flight"),
        ((STYLE, f"{LIMIT}=0", "buffer.batch_size=8", "buffer.train_batch_size=8"), "E1805", LIMIT),
        (("explorer.max_inflight_batches=3",), "W1902", "explorer.max_inflight_batches"),
        ((STYLE, "deterministic=true", "explorer.max_inflight_batches=3"), "W1902", "explorer.max_inflight_batches"),
        (("synchronizer.checkpoint_delta=true",), "W1902", "synchronizer.checkpoint_delta"),
    ],
)
def test_keys_that_do_not_fit_the_style_are_told(
    examined: Examine, overrides: tuple[str, ...], code: str, key: str
) -> None:
    assert (code, key) in [(p.code, p.key) for p in examined(MINIMAL, *overrides)[1]]


def test_the_bound_of_fully_async_is_one_more_than_the_least(examined: Examine) -> None:
    sizes = ("algorithm.repeat_times=8", "buffer.batch_size=2")
    assert only(examined, MINIMAL, STYLE, *sizes).synchronizer.max_staleness == 1
    assert only(examined, MINIMAL, STYLE, *sizes, "buffer.train_batch_size=4").synchronizer.max_staleness == 4


@pytest.mark.parametrize(
    ("interval", "train_batch_size", "least"), [(1, 16, 0), (3, 16, 2), (2, 8, 1), (3, 8, 3), (2, 32, 1), (4, 4, 3)]
)
def test_apart_the_bound_leaves_room_for_the_steps_between_two_versions(
    examined: Examine, interval: int, train_batch_size: int, least: int
) -> None:
    sizes = ("algorithm.repeat_times=8", "buffer.batch_size=2", f"buffer.train_batch_size={train_batch_size}")
    apart = ("mode=explore", STYLE, f"synchronizer.sync_interval={interval}", *sizes)
    assert only(examined, MINIMAL, *apart).synchronizer.max_staleness == least + 1
    assert only(examined, MINIMAL, *apart, f"{LIMIT}={least}").synchronizer.max_staleness == least
    if least:
        assert ("E1805", LIMIT) in [(p.code, p.key) for p in examined(MINIMAL, *apart, f"{LIMIT}={least - 1}")[1]]


def test_steps_of_both_sides_follow_the_rollouts_where_no_interval_does(examined: Examine) -> None:
    sizes = ("algorithm.repeat_times=8", "buffer.batch_size=2", "buffer.train_batch_size=4", "buffer.total_steps=6")
    assert only(examined, MINIMAL, STYLE, *sizes).trainer.total_steps == 24


def test_nccl_is_kept_where_engines_have_processes_of_their_own(examined: Examine) -> None:
    wanted = "synchronizer.sync_method=nccl"
    assert only(examined, MINIMAL, wanted).synchronizer.sync_method == "memory"
    several = only(examined, MINIMAL, wanted, "explorer.rollout_model.engine_num=2")
    assert several.synchronizer.sync_method == "nccl"
