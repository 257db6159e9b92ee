"""Folders of jobs as runs leave them, made without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity.launch.job import LOCK, LOCKS, write_record
from trinity.monitor import Monitor

ACCURACY, REWARD = "eval/held/accuracy/mean@1", "rollout/reward/mean"
NOTE = "cd /work && trinity run --config run.yaml"


def monitor(job_dir: Path, actor: str) -> Monitor:
    return Monitor(job_dir, project="p", name="n", actor=actor, monitor_type=None)


def made_job(folder: Path, *, steps: int = 20, status: str = "done", **record: Any) -> Path:
    """A job of `steps` explore and training steps: rewards of 0.01 a step, evaluations at 0, half and the end."""
    (folder / LOCKS).mkdir(parents=True)
    (folder / LOCK).write_text(f"pid 1 on here since 2026-01-01 00:00:00\n{NOTE}\n")
    explorer, trainer = monitor(folder, "explorer"), monitor(folder, "trainer")
    for step in range(steps + 1):
        if step:
            values = {REWARD: step / 100, "response_length/mean": 10.0 + step, "rollout/model_version": step - 1}
            values |= {"time/explore_step": 0.5, "perf/engine/generated_tokens": 100.0 * step}
            explorer.log(values | {"rollout/response_truncated_count": step % 2}, step)
            trained = {"actor/final_loss": 0.1, "perf/total_num_tokens": 50.0, "time/train_step": 0.25}
            trainer.log(trained | {"time/sync_weight": 0.125, "actor/skipped_steps": 0.0}, step)
        if step in (0, steps // 2, steps):
            score = {0: 0.2, steps // 2: 0.9}.get(step, 0.7)
            explorer.log({ACCURACY: score, "eval/held/reward/mean@1": score, "eval/model_version": step}, step)
    for step in (steps // 2, steps):
        model = folder / f"global_step_{step}" / "actor" / "huggingface"
        model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"")
    ended = {"status": status, "training_step": steps, "explore_step": steps, "seconds": 12.5, "stage": None}
    write_record(folder, **(ended | record))
    return folder
