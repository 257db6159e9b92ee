"""The YAML file of the quickstart as the run understands it."""

from __future__ import annotations

from pathlib import Path

from trinity.catalogue import builtin_catalogue
from trinity.common.config import load_plan
from trinity.quickstart.folder import prepare


def test_the_yaml_is_a_valid_plan_of_the_measured_recipe(tmp_path: Path) -> None:
    folder = prepare(tmp_path, seed=7)
    warm_up, rft = load_plan(folder.config, catalogue=builtin_catalogue()).stages
    assert [warm_up.name, rft.name] == ["sft_warmup", "rft"]
    assert [warm_up.warnings, rft.warnings] == [[], []]
    sft, grpo = warm_up.config, rft.config
    assert (sft.mode, sft.algorithm.algorithm_type, sft.trainer.total_steps) == ("train", "sft", 550)
    assert (grpo.mode, grpo.algorithm.algorithm_type, grpo.buffer.total_steps) == ("both", "grpo", 40)
    assert (grpo.buffer.batch_size, grpo.algorithm.repeat_times, grpo.buffer.train_batch_size) == (32, 8, 128)
    assert grpo.deterministic and grpo.seed == 7
    assert grpo.synchronizer.sync_method == "memory"
    assert grpo.buffer.explorer_input.eval_tasksets[0].rollout_args.temperature == 0.0
    assert sft.trainer.max_token_len_per_gpu == grpo.trainer.max_token_len_per_gpu == 8192
