"""Every algorithm that learns from rollouts: rollout, advantage, loss, step, synchronisation, resume.

The runs are in this process: a process of its own costs more than the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE
from trinity.common.config.available import SERVED_NAMES
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow

STEPS = 3
TYPES = sorted(n for n in SERVED_NAMES["algorithm_type"] if ALGORITHM_TYPE.get(n).schema == "experience")
ACTOR = {"ppo_micro_batch_size_per_gpu": 2, "fsdp_config": {"dtype": "float32"}}
FILTER = [{"name": "reward_filter", "args": {"threshold": 0.1}}]
VARIANTS: dict[str, dict[str, Any]] = {
    "kl in the reward": {
        "algorithm_type": "grpo_verl", "kl_penalty_fn": "k1", "kl_loss_fn": "none",
        "kl_penalty_fn_args": {"adaptive": True, "kl_coef": 0.1, "target_kl": 1e-4, "horizon": 100},
    },
    "old log-probabilities recomputed": {"algorithm_type": "gspo", "bypass_old_logprobs": False},
    "functions of veRL": {
        "algorithm_type": "grpo", "advantage_fn": "verl_rloo_vectorized", "policy_loss_fn": "verl_cispo",
        "policy_loss_fn_args": {"loss_agg_mode": "seq-mean-token-sum"},
    },
    "optimal baseline of every token": {
        "algorithm_type": "grpo_verl", "advantage_fn": "optimal_token_baseline", "policy_loss_fn": "dro",
        "policy_loss_fn_args": {"dro_beta": 0.1}, "kl_loss_fn": "full",
    },
    "sum over tokens": {
        "algorithm_type": "gpg", "policy_loss_fn_args": {"loss_agg_mode": "token-sum"}, "kl_loss_fn": "k2",
    },
}  # fmt: skip


Changes = Callable[[Path], dict[str, Any]]


def no_changes(folder: Path) -> dict[str, Any]:
    """Return the keys to change for the run in `folder`: none."""
    return {}


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def make_run(folder: Path, algorithm: dict[str, Any]) -> TinyRun:
    """Return a run of `STEPS` steps, four rollouts of each of two tasks."""
    run = TinyRun(folder)
    run.tree["algorithm"] = {"repeat_times": 4, "optimizer": {"lr": 1.0e-3}} | algorithm
    run.change(
        deterministic=True,
        checkpoint_root_dir=str(folder / "out"),
        model__model_path=str(folder / "model"),
        buffer__total_steps=STEPS,
        buffer__explorer_input__default_reward_fn_type="share_of_digits",
        buffer__explorer_input__taskset__path=str(folder / "train.jsonl"),
        trainer__save_hf_checkpoint="always",
        trainer__trainer_config={"actor_rollout_ref": {"actor": ACTOR}},
        trainer__use_dynamic_bsz=False,
    )
    if algorithm["algorithm_type"] == "raft":
        run.change(data_processor__experience_pipeline={"operators": FILTER})
    return run


def finish(run: TinyRun, plugins: Path, steps: int = STEPS, more: tuple[Path, ...] = ()) -> None:
    """Run in this process until `steps` training steps are done."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(overrides=(f"buffer.total_steps={steps}",), plugin_dirs=(plugins, *more))
    result = run_plan(plan_run(run.folder / "run.yaml", options), options)
    assert result.error is None and result.stages[-1].training_step == steps


def check(folder: Path, algorithm: dict[str, Any], plugins: Path, changes: Changes = no_changes) -> TinyRun:
    """Run as a whole and in two parts; both must learn, serve what they learnt, and end the same."""
    whole, parts = make_run(folder / "whole", algorithm), make_run(folder / "parts", algorithm)
    for run in (whole, parts):
        run.change(**changes(run.folder))
    finish(whole, plugins)
    finish(parts, plugins, steps=STEPS - 1)
    finish(parts, plugins)
    lines = whole.lines("trainer")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert max(line["actor/grad_norm"] for line in lines) > 1e-4
    assert all(line["actor/skipped_steps"] == 0 for line in lines)
    assert max(line["training/rollout_logprobs_diff_max"] for line in lines) < 1e-3, "the rollouts used these weights"
    first, last = (whole.job / f"global_step_{n}" / "actor/huggingface/model.safetensors" for n in (1, STEPS))
    assert any(not torch.equal(tensor, load_file(last)[name]) for name, tensor in load_file(first).items())
    assert final_weights(parts, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)
    assert critic_weights(parts) == critic_weights(whole)
    return whole


def critic_weights(run: TinyRun) -> dict[str, list[float]]:
    """Return the weights of the last checkpoint's critic; empty where there is none."""
    file = run.job / f"global_step_{STEPS}" / "critic" / "model_world_size_1_rank_0.pt"
    if not file.is_file():
        return {}
    return {name: tensor.flatten().tolist() for name, tensor in torch.load(file, weights_only=True).items()}


@pytest.mark.parametrize("name", TYPES)
def test_algorithm_learns_and_continues(tmp_path: Path, plugins: Path, name: str) -> None:
    run = check(tmp_path, {"algorithm_type": name}, plugins)
    advantage = ADVANTAGE_FN.get(ALGORITHM_TYPE.contents[name].args["advantage_fn"])
    line = run.lines("trainer")[0]
    assert ("critic/advantages/max" in line) == (advantage is not None)
    assert ("critic/returns/max" in line) == (advantage is not None and advantage.compute_in_trainer())
    has_critic = ALGORITHM_TYPE.get(name).use_critic
    assert bool(critic_weights(run)) == has_critic == ("critic/vf_loss" in line)


@pytest.mark.parametrize("algorithm", VARIANTS.values(), ids=VARIANTS)
def test_variant_learns_and_continues(tmp_path: Path, plugins: Path, algorithm: dict[str, Any]) -> None:
    lines = check(tmp_path, algorithm, plugins).lines("trainer")
    if "kl_penalty_fn" in algorithm:
        assert lines[0]["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-5)
        assert len({line["actor/reward_kl_penalty_coeff"] for line in lines}) == STEPS, "the coefficient moves"
        assert lines[2]["critic/rewards/mean"] != lines[2]["critic/score/mean"]
