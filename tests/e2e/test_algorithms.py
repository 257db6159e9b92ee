"""Every algorithm that learns from rollouts: rollout, advantage, loss, step, synchronisation, resume.

The runs are in this process: a process of its own costs more than the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE
from trinity.buffer.store import ExperienceStore
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow

EXPERT = """
sft_dataset:
  name: sft_dataset
  storage_type: file
  path: ${oc.env:TRINITY_SFT_DATASET_PATH}
  format:
    prompt_key: 'question'
    response_key: 'answer'
"""
STEPS = 3
TYPES = sorted(n for n in ALGORITHM_TYPE if ALGORITHM_TYPE.get(n).schema == "experience")
ACTOR = {"ppo_micro_batch_size_per_gpu": 2, "fsdp_config": {"dtype": "float32"}}
DISTILLATION = {"jsd", "on_policy_distill"}
SEVERAL_STEPS = {"gigpo", "multi_step_grpo"}
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
    "components of the reward": {
        "algorithm_type": "grpo_verl", "advantage_fn": "gdpo",
        "advantage_fn_args": {"gdpo_reward_keys": ["digits", "variety"], "gdpo_reward_weights": [1.0, 0.5]},
    },
    "optimal baseline of every token": {
        "algorithm_type": "grpo_verl", "advantage_fn": "optimal_token_baseline", "policy_loss_fn": "dro",
        "policy_loss_fn_args": {"dro_beta": 0.1}, "kl_loss_fn": "full",
    },
    "entropy clip": {
        "algorithm_type": "grpo", "advantage_fn": "clipv", "advantage_fn_args": {"mu": 0.1, "max_frac": 0.5},
    },
    "sum over tokens": {
        "algorithm_type": "gpg", "policy_loss_fn_args": {"loss_agg_mode": "token-sum"}, "kl_loss_fn": "k2",
    },
    "mixed, with advantages of the trainer": {
        "algorithm_type": "mix_chord", "advantage_fn": "rloo", "sample_strategy_args": {"expert_data_ratio": 0.2},
        "policy_loss_fn_args": {"mu_warmup_steps": 2, "mu_decay_steps": 2, "mu_peak": 0.5},
        "entropy_loss_fn_args": {"entropy_coef": 0.01},
    },
}  # fmt: skip


Changes = Callable[[Path], dict[str, Any]]


def no_changes(folder: Path) -> dict[str, Any]:
    """Return the keys to change for the run in `folder`: none."""
    return {}


@pytest.fixture(autouse=True)
def _demonstrations(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plugins / "expert.jsonl"
    path.write_text("".join(json.dumps({"question": f"{a}+1=", "answer": str(a + 1)}) + "\n" for a in range(11)))
    monkeypatch.setenv("TRINITY_SFT_DATASET_PATH", str(path))


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
    if algorithm["algorithm_type"] in ("mix", "mix_chord"):
        run.change(buffer__trainer_input__auxiliary_buffers=yaml.safe_load(EXPERT))
    if algorithm["algorithm_type"] in DISTILLATION:
        tiny_model(folder / "teacher", "qwen2", seed=2, scale=3.0)
        run.change(explorer__auxiliary_models=[{"model_path": str(folder / "teacher"), "dtype": "float32"}])
    if algorithm["algorithm_type"] in SEVERAL_STEPS:
        run.change(buffer__explorer_input__default_workflow_type="digits_step_by_step")
    return run


def finish(
    run: TinyRun, plugins: Path, steps: int = STEPS, more: tuple[Path, ...] = (), overrides: tuple[str, ...] = ()
) -> None:
    """Run in this process until `steps` training steps are done."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(overrides=(f"buffer.total_steps={steps}", *overrides), plugin_dirs=(plugins, *more))
    result = run_plan(plan_run(run.folder / "run.yaml", options), options)
    assert result.error is None and result.stages[-1].training_step == steps


def check(folder: Path, algorithm: dict[str, Any], plugins: Path, changes: Changes = no_changes) -> TinyRun:
    """Run as a whole and in two parts; both must learn, serve what they learned, and end the same."""
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
    assert ("critic/advantages/max" in line) == ("critic/returns/max" in line) == (advantage is not None)
    has_critic = ALGORITHM_TYPE.get(name).use_critic
    assert bool(critic_weights(run)) == has_critic == ("critic/vf_loss" in line)
    if name in SEVERAL_STEPS:
        check_whole_rollouts(run)
    if name == "remax":
        check_remax(run)


def check_whole_rollouts(run: TinyRun) -> None:
    """Every training step took all experiences of its eight rollouts, in one optimizer step."""
    lines = run.lines("trainer")
    assert [line["sample/rollout_count"] for line in lines] == [8] * STEPS
    assert [line["sample/experience_count"] for line in lines] == [
        line["experience_pipeline/experience_count"] for line in run.lines("explorer")
    ]
    assert sum(line["sample/experience_count"] for line in lines) > 8 * STEPS, "some rollouts have several steps"
    with stored(run) as store:
        counts = store.counts("experience_buffer", "tiny/run")
    assert (counts["ready"], counts["claimed"], counts["dropped"]) == (0, 0, {})


def check_remax(run: TinyRun) -> None:
    """The advantage is the reward minus that of the task's greedy rollout, by hand from what is stored."""
    with stored(run) as store:
        token = store.open_consumer("experience_buffer", "auditor", run="tiny/run", cut=0)
        held = store.open_consumer("experience_buffer", "trainer", run="tiny/run", cut=STEPS - 1)
        rows = store.read_batch(held, 8, timeout_s=0).experiences
        assert not store.claim(token, 1), "the greedy rollouts are not stored"
    assert len(rows) == 8 and {exp.eid.run for exp in rows} == {0, 1, 2, 3}
    advantages = [(exp.reward or 0.0) - exp.info["reward_baseline"] for exp in rows for _ in range(exp.response_length)]
    line = run.lines("trainer")[STEPS - 1]
    assert line["critic/advantages/mean"] == pytest.approx(sum(advantages) / len(advantages), abs=1e-6)
    assert line["critic/advantages/max"] == pytest.approx(max(advantages), abs=1e-6)
    assert line["critic/advantages/min"] == pytest.approx(min(advantages), abs=1e-6)
    baselines = {exp.eid.task: exp.info["reward_baseline"] for exp in rows}
    assert any(baselines.values()), "a baseline of 0 would prove nothing"
    explored = run.lines("explorer")[STEPS - 1]
    assert explored["rollout/baseline_reward/mean"] == pytest.approx(sum(baselines.values()) / 2)
    assert explored["rollout/failed_baseline_count"] == 0


def stored(run: TinyRun) -> ExperienceStore:
    """Return the store that the run left, open within a `with` block."""
    (file,) = run.job.glob("buffer/*.db")
    return ExperienceStore(f"sqlite:///{file}")


@pytest.mark.parametrize("algorithm", VARIANTS.values(), ids=VARIANTS)
def test_variant_learns_and_continues(tmp_path: Path, plugins: Path, algorithm: dict[str, Any]) -> None:
    lines = check(tmp_path, algorithm, plugins).lines("trainer")
    if "kl_penalty_fn" in algorithm:
        assert lines[0]["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-5)
        assert len({line["actor/reward_kl_penalty_coeff"] for line in lines}) == STEPS, "the coefficient moves"
        assert lines[2]["critic/rewards/mean"] != lines[2]["critic/score/mean"]


def test_old_rows_are_dropped_in_every_process_alike(tmp_path: Path, plugins: Path) -> None:
    algorithm = {"algorithm_type": "grpo", "kl_loss_fn": "none", "sample_strategy": "staleness_control",
                 "sample_strategy_args": {"max_staleness": 0}}  # fmt: skip
    whole, parts = (make_run(tmp_path / name, algorithm) for name in ("whole", "parts"))
    for run in (whole, parts):
        run.change(synchronizer__sync_interval=2)
    finish(whole, plugins)
    finish(parts, plugins, steps=STEPS - 1)
    finish(parts, plugins)
    lines = whole.lines("trainer")
    # Two explore steps are served by the same weights: in the second training step those rows are one step old.
    assert [line["sample/stale_count"] for line in lines] == [0.0, 8.0, 0.0]
    assert [line["sample/experience_count"] for line in lines] == [8.0, 0.0, 8.0]
    assert final_weights(parts, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)
