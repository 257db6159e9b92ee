"""A whole run with a critic of another family that warms up, stopped and continued."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import critic_weights, finish, make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow


def warming_up(folder: Path) -> TinyRun:
    """Return a run of three steps, of which the first two train only a Qwen2 critic, in shuffled passes."""
    run = make_run(folder, {"algorithm_type": "ppo"})
    tiny_model(folder / "critic", "qwen2", seed=5)
    return run.change(
        model__critic_model_path=str(folder / "critic"),
        trainer__critic_warmup=2,
        trainer__trainer_config__critic={
            "optim": {"lr": 1e-3, "lr_scheduler_type": "cosine", "lr_warmup_steps": 1},
            "ppo_epochs": 2,
            "shuffle": True,
            "ppo_micro_batch_size_per_gpu": 3,
        },
    )


def test_a_critic_warms_up_and_continues(tmp_path: Path, plugins: Path) -> None:
    whole, parts = warming_up(tmp_path / "whole"), warming_up(tmp_path / "parts")
    finish(whole, plugins)
    finish(parts, plugins, steps=1)
    finish(parts, plugins)
    assert final_weights(parts, 3) == final_weights(whole, 3)
    assert critic_weights(parts) == critic_weights(whole) != {}
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)

    start, *saved = (
        load_file(folder / "model.safetensors")
        for folder in (whole.folder / "model", *(whole.job / f"global_step_{n}/actor/huggingface" for n in (1, 2, 3)))
    )
    assert all(torch.equal(start[name], saved[n][name]) for name in start for n in (0, 1)), "the policy rests"
    assert any(not torch.equal(start[name], saved[2][name]) for name in start)
    lines = whole.lines("trainer")
    assert ["actor/lr" in line for line in lines] == [False, False, True]
    assert lines[0]["critic/lr"] == 1e-3 > lines[1]["critic/lr"] > lines[2]["critic/lr"]
    assert all(line["critic/grad_norm"] > 1e-3 for line in lines)
    critics = [load_file(whole.job / f"global_step_{n}/critic/huggingface/model.safetensors") for n in (1, 2)]
    assert any(not torch.equal(critics[0][name], critics[1][name]) for name in critics[0])
