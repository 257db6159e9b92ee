"""Runs that train an adapter: merged weights in the rollouts, resume, an adapter to start from, demonstrations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.e2e.short_run import comparable_metrics
from tests.e2e.test_algorithms import STEPS, finish, make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun
from trinity.launch.run import RunOptions, plan_run, run_plan

pytestmark = pytest.mark.slow

GRPO = {"algorithm_type": "grpo", "kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": 0.1}}
LORA = [{"lora_rank": 4, "lora_alpha": 8}]


def check_adapted(run: TinyRun, base: Path, *, step: int) -> None:
    """Assert that the run trained nothing but its adapter, and that its export has the adapter merged."""
    actor = run.job / f"global_step_{step}" / "actor"
    whole, exported = load_file(base / "model.safetensors"), load_file(actor / "huggingface" / "model.safetensors")
    changed = {name for name, tensor in whole.items() if not torch.equal(tensor, exported[name])}
    assert len(changed) == 14 and all(name.endswith("_proj.weight") for name in changed)
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), actor / "lora_adapter")
    merged = dict(model.merge_and_unload().named_parameters())
    assert all(torch.equal(merged[name], exported[name]) for name in exported)


@pytest.mark.parametrize(("method", "kind"), [("auto", "grpo"), ("checkpoint", "ppo")])
def test_adapter_learns_from_rollouts_and_continues(tmp_path: Path, plugins: Path, method: str, kind: str) -> None:
    whole, parts = (make_run(tmp_path / name, GRPO | {"algorithm_type": kind}) for name in ("whole", "parts"))
    for run in (whole, parts):
        run.change(model__lora_configs=LORA, synchronizer__sync_method=method)
    finish(whole, plugins)
    finish(parts, plugins, steps=STEPS - 1)
    finish(parts, plugins)
    lines = whole.lines("trainer")
    assert max(line["actor/grad_norm"] for line in lines) > 1e-3
    assert max(line["training/rollout_logprobs_diff_max"] for line in lines) < 1e-4, "rollouts used the adapter"
    assert lines[0]["actor/kl_loss"] == 0.0 and lines[2]["actor/kl_loss"] > 0.0, "the reference is the bare model"
    check_adapted(whole, tmp_path / "whole" / "model", step=STEPS)
    assert final_weights(parts, STEPS) == final_weights(whole, STEPS)
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)


def test_existing_adapter_serves_the_first_rollouts(tmp_path: Path, plugins: Path) -> None:
    first = make_run(tmp_path / "first", GRPO)
    first.change(model__lora_configs=LORA, algorithm__optimizer__lr=0.1)
    finish(first, plugins)
    adapter = first.job / f"global_step_{STEPS}" / "actor" / "lora_adapter"
    second = make_run(tmp_path / "second", GRPO)
    second.change(model__lora_configs=[{"path": str(adapter)}])
    finish(second, plugins)
    lines = second.lines("trainer")
    assert max(line["training/rollout_logprobs_diff_max"] for line in lines) < 1e-4
    assert lines[0]["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6), "the reference has the adapter, too"
    config = json.loads((second.job / f"global_step_{STEPS}" / "actor/lora_adapter/adapter_config.json").read_text())
    assert config["r"] == 4


def demonstrations(folder: Path) -> TinyRun:
    """Return a run that imitates sums."""
    run = TinyRun(folder)
    run.write_rows([{"question": f"{a}+{a + 1}=", "answer": str(2 * a + 1)} for a in range(8)])
    buffer: dict[str, Any] = {
        "name": "sums",
        "storage_type": "file",
        "path": str(folder / "train.jsonl"),
        "format": {"prompt_type": "plaintext", "prompt_key": "question", "response_key": "answer"},
    }
    del run.tree["synchronizer"], run.tree["explorer"]
    return run.change(
        mode="train",
        deterministic=True,
        checkpoint_root_dir=str(folder / "out"),
        algorithm={"algorithm_type": "sft", "optimizer": {"lr": 1.0e-2}},
        buffer={"train_batch_size": 4, "trainer_input": {"experience_buffer": buffer}},
        model__model_path=str(folder / "model"),
        model__lora_configs=LORA,
        trainer__save_hf_checkpoint="always",
        trainer__trainer_config={"actor_rollout_ref": {"actor": {"fsdp_config": {"dtype": "float32"}}}},
    )


def imitate(run: TinyRun, steps: int) -> None:
    """Run in this process until `steps` training steps are done."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions(overrides=(f"trainer.total_steps={steps}",))
    result = run_plan(plan_run(run.folder / "run.yaml", options), options)
    assert result.error is None and result.stages[-1].training_step == steps


def test_adapter_learns_from_demonstrations_and_continues(tmp_path: Path) -> None:
    whole, parts = demonstrations(tmp_path / "whole"), demonstrations(tmp_path / "parts")
    imitate(whole, 6)
    imitate(parts, 3)
    imitate(parts, 6)
    losses = [line["actor/final_loss"] for line in whole.lines("trainer")]
    assert losses[-1] < 0.9 * losses[0]
    check_adapted(whole, tmp_path / "whole" / "model", step=6)
    assert final_weights(parts, 6) == final_weights(whole, 6)
    assert comparable_metrics(parts.job) == comparable_metrics(whole.job)
