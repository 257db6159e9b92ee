"""A run that uses its rollouts again: what it trains, and that a failure and a resume change no bit of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import make_run, stored
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from trinity.buffer.store import ConsumerToken
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.utils import failpoints

pytestmark = pytest.mark.slow

STEPS = 5
FRESH, BATCH = 8, 12  # rollouts that an explore step makes, and that a training step takes


def made(folder: Path) -> TinyRun:
    """Return a run whose batches hold rollouts of earlier steps, of which few fit into the buffer."""
    run = make_run(folder, {"algorithm_type": "grpo", "entropy_loss_fn_args": {"entropy_coef": 0.01}})
    replay = {
        "enable": True,
        "reuse_cooldown_time": 0,
        "priority_fn": "linear_decay_use_count_control_randomization",
        "priority_fn_args": {"decay": 0.5, "sigma": 2.0},
    }
    return run.change(
        buffer__total_steps=STEPS,
        buffer__train_batch_size=BATCH,
        buffer__trainer_input__experience_buffer={"replay_buffer": replay, "capacity": 20},
        synchronizer__sync_offset=1,
        trainer__save_interval=2,
        trainer__trainer_config={"actor_rollout_ref": {"actor": {"ppo_micro_batch_size_per_gpu": 4}}},
    )


def finish(run: TinyRun, plugins: Path) -> None:
    """Run in this process."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(plugin_dirs=(plugins,))
    assert run_plan(plan_run(run.folder / "run.yaml", options), options).error is None


def trained(run: TinyRun) -> list[list[str]]:
    """Return the ids of the rollouts of every training step, from the ledger."""
    with stored(run) as store:
        token = ConsumerToken("experience_buffer", "trainer", "tiny/run", "", 0)
        return [store.step_uids(token, step) or [] for step in range(1, STEPS + 1)]


def test_a_run_with_replay_that_fails_and_is_continued_ends_bit_for_bit_as_without(tmp_path: Path, plugins: Path):
    whole, parts = made(tmp_path / "whole"), made(tmp_path / "parts")
    finish(whole, plugins)
    failpoints.configure("store.commit_step.after_commit=raise@3")  # between the checkpoints of steps 2 and 4
    try:
        with pytest.raises(RuntimeError, match="failpoint"):
            finish(parts, plugins)
    finally:
        failpoints.configure("")
    finish(parts, plugins)

    steps = trained(whole)
    assert trained(parts) == steps
    assert final_weights(parts, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)
    uses = [uid for step in steps for uid in step]
    assert len(uses) == STEPS * BATCH and all(len(set(step)) == len(step) for step in steps)
    assert 1 < max(map(uses.count, uses)) <= 3, "some are used again, none beyond the limit"
    lines = whole.lines("trainer")
    assert sum(line["sample/evicted_count"] for line in lines) > 0
    assert max(line["sample/staleness/max"] for line in lines) >= 2, "the schedule alone gives 1"
    with stored(whole) as store:
        counts = store.counts("experience_buffer", "tiny/run")
    assert (
        counts["ready"] + counts["claimed"] + counts["trained"] + counts["dropped"].get("evicted", 0) == STEPS * FRESH
    )
