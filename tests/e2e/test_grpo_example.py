"""The example `grpo_gsm8k`: a run whose trainer settings stand in a file of their own, with small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.short_run import ROOT
from trinity.common.errors import ExitCode
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.quickstart.dataset import train_rows, write_jsonl
from trinity.quickstart.model import write_model

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "grpo_gsm8k"


def test_the_example_runs_with_the_trainer_settings_of_its_second_file(tmp_path: Path):
    write_model(tmp_path / "model", seed=1)
    write_jsonl(tmp_path / "train.jsonl", train_rows(1)[:8])
    overrides = {
        "checkpoint_root_dir": tmp_path / "out",
        "model.model_path": tmp_path / "model",
        "model.max_model_len": 40,
        "model.max_response_tokens": 16,
        "cluster.gpu_per_node": 0,
        "buffer.batch_size": 4,
        "buffer.explorer_input.taskset.path": tmp_path / "train.jsonl",
        "trainer.trainer_config_path": EXAMPLE / "train_gsm8k.yaml",
    }
    options = RunOptions(overrides=[f"{key}={value}" for key, value in overrides.items()])
    plan = plan_run(EXAMPLE / "gsm8k.yaml", options)
    actor = plan.stages[0].config.trainer.trainer_config.actor_rollout_ref.actor
    assert actor.ppo_max_token_len_per_gpu == 16384 and actor.ppo_mini_batch_size == 32
    assert run_plan(plan, options).exit_code == ExitCode.DONE
    lines = (tmp_path / "out" / "grpo_gsm8k" / "gsm8k" / "metrics.jsonl").read_text().splitlines()
    trained = [line for line in map(json.loads, lines) if line["actor"] == "trainer"]
    assert [(line["step"], line["sample/experience_count"]) for line in trained] == [(1, 32.0), (2, 32.0)]
    for name in ("gsm8k.yaml", "train_gsm8k.yaml"):
        assert len((EXAMPLE / name).read_text().splitlines()) <= 45
