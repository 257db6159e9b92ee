"""A whole run, explorer included, whose trainer is two processes that share model and sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_algorithms import finish, make_run

pytestmark = pytest.mark.slow

PPO = {"algorithm_type": "ppo"}


def test_two_workers_train_what_the_explorer_samples_with_their_weights(tmp_path: Path, plugins: Path) -> None:
    alone, ranks = make_run(tmp_path / "alone", PPO), make_run(tmp_path / "ranks", PPO)
    ranks.change(trainer__num_workers=2, trainer__ulysses_sequence_parallel_size=2, trainer__save_interval=2)
    finish(alone, plugins)
    finish(ranks, plugins)
    lines = ranks.lines("trainer")
    assert [line["step"] for line in lines] == [1, 2, 3]
    # The engine sampled steps 2 and 3 with weights that were gathered from both processes.
    assert max(line["training/rollout_logprobs_diff_max"] for line in lines) < 1e-3
    assert max(line["actor/grad_norm"] for line in lines) > 1e-4
    for name, value in alone.lines("trainer")[0].items():
        if name.startswith(("actor/", "critic/")):
            assert lines[0][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    last = ranks.job / "global_step_3"
    assert (last / "critic" / "model_world_size_2_rank_1.pt").is_file()
    assert (last / "actor" / "huggingface" / "model.safetensors").is_file()
