"""A whole run, explorer included, whose trainer is two processes that share model and sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from tests.e2e.test_algorithms import STEPS, finish, make_run
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow

PPO = {"algorithm_type": "ppo"}
RESIZED = tuple(f"trainer.megatron.{name}_model_parallel_size" for name in ("tensor", "pipeline"))
SHARED = {
    "trainer__num_workers": 2,
    "trainer__trainer_strategy": "megatron",
    "trainer__megatron": {"tensor_model_parallel_size": 2},
    "trainer__save_interval": 2,
}


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


@pytest.mark.difference("`trainer_strategy: megatron`")
@pytest.mark.nightly
def test_two_workers_that_share_matrices_and_then_layers_train_as_one(tmp_path: Path, plugins: Path) -> None:
    alone, shared = make_run(tmp_path / "alone", PPO), make_run(tmp_path / "shared", PPO)
    shared.change(**SHARED)
    finish(alone, plugins)
    finish(shared, plugins, steps=2)
    shared.change(trainer__megatron={"pipeline_model_parallel_size": 2})
    (shared.folder / "run.yaml").write_text(yaml.safe_dump(shared.tree))
    overrides = (f"buffer.total_steps={STEPS}",)
    options = RunOptions(overrides=overrides, plugin_dirs=(plugins,), accepted_changes=RESIZED)
    assert run_plan(plan_run(shared.folder / "run.yaml", options), options).stages[-1].training_step == STEPS
    lines = shared.lines("trainer")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert max(line["training/rollout_logprobs_diff_max"] for line in lines) < 1e-3
    for line_of_one, line in zip(alone.lines("trainer"), lines, strict=True):
        for name, value in line_of_one.items():
            if name.startswith(("actor/", "critic/")):
                assert line[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert (shared.job / "global_step_3" / "critic" / "optim_world_size_2_rank_1.pt").is_file()
    exported, expected = (
        load_file(run.job / "global_step_3" / "actor" / "huggingface" / "model.safetensors") for run in (shared, alone)
    )
    assert exported.keys() == expected.keys()
    assert max(float((weight - expected[name]).abs().max()) for name, weight in exported.items()) < 1e-3
