"""Killed in the middle under each schedule of weights, saved at every step: the same bits as without the kill."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.short_run import SHORT, ShortRun

pytestmark = pytest.mark.slow

COMMON = (
    *SHORT,
    "stages[0].trainer.total_steps=1",
    "stages[0].trainer.save_interval=0",
    "stages[1].trainer.save_interval=1",
    "stages[1].algorithm.kl_loss_fn_args.adaptive=true",
    "stages[1].algorithm.kl_loss_fn_args.target_kl=0.01",
    "stages[1].algorithm.kl_loss_fn_args.horizon=1000",
    "stages[1].trainer.trainer_config.actor_rollout_ref.actor.shuffle=true",
    "stages[1].trainer.trainer_config.actor_rollout_ref.actor.ppo_epochs=2",
    "stages[1].buffer.explorer_input.taskset.data_selector.selector_type=shuffle",
)
OFFSET = ("stages[1].synchronizer.sync_offset=1", "stages[1].explorer.name=walker")
INTERVALS = (
    "stages[1].synchronizer.explorer_sync_interval=2",
    "stages[1].synchronizer.trainer_sync_interval=4",
    "stages[1].synchronizer.sync_offset=1",
    "stages[1].synchronizer.sync_method=checkpoint",
)
FILTERED = (
    "stages[1].algorithm.advantage_fn_args.std_threshold=0.0",
    "stages[1].synchronizer.sync_offset=1",
)
FIRST_STAGE_STEPS = 1

CASES = [
    pytest.param(OFFSET, f"train.after_step=kill@{FIRST_STAGE_STEPS + 4}", id="offset", marks=pytest.mark.nightly),
    # The checkpoint of step 5 lies between the versions 4 and 8.
    pytest.param(
        INTERVALS, f"train.after_step=kill@{FIRST_STAGE_STEPS + 6}", id="intervals", marks=pytest.mark.nightly
    ),
    pytest.param(FILTERED, "explore.after_rollout=kill@3", id="filtered"),
]


@pytest.mark.difference("Resume")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("schedule", "failpoint"), CASES)
def test_a_kill_changes_no_bit_under_any_schedule(tmp_path: Path, schedule: tuple[str, ...], failpoint: str):
    whole = ShortRun.make(tmp_path / "whole", overrides=(*COMMON, *schedule))
    status, output = whole.finish(is_real=True)
    assert status == 0, output
    expected = whole.outcome()

    run = ShortRun.make(tmp_path / "killed", overrides=(*COMMON, *schedule))
    status, output = run.finish(failpoints=failpoint)
    assert status == -signal.SIGKILL, output
    status, output = run.finish()
    assert status == 0, output
    found = run.outcome()
    assert found["rft"]["metrics"] == expected["rft"]["metrics"]
    assert found == expected
