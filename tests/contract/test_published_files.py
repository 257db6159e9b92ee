"""What published files write, by kind: it is understood, and a warning says what is done instead."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.tiny_run import PLAIN, TinyRun
from trinity.catalogue import builtin_catalogue
from trinity.common.config import Config, Finding, examine
from trinity.common.config.tree import value_at

TASKSET = "buffer__explorer_input__taskset"
DERIVED = "algorithm__policy_loss_fn_args__ngpus_trainer"
CHORD = {
    "algorithm__algorithm_type": "mix_chord",
    "algorithm__sample_strategy_args": {"expert_data_ratio": 0.25},
    "buffer__trainer_input__auxiliary_buffers": {"sft_dataset": {"path": "sft.jsonl", "schema_type": "sft"}},
}
EVAL = {"name": "train", "path": "train.jsonl", "format": {"prompt_key": "question", "response_key": "answer"}}
CONTENTS = ["model", "hf_model", "optimizer", "extra"]
ACTOR = "trainer__trainer_config__actor_rollout_ref__actor"

# Keys and values, the code of the warning (empty: none), and a key with the value that it has then.
FILES: dict[str, tuple[dict[str, Any], str, str, Any]] = {
    "an evaluation named like the taskset": (
        {"buffer__explorer_input__eval_tasksets": [EVAL]}, "W1305",
        "buffer.explorer_input.eval_tasksets.0.name", "train",
    ),
    "weights for others among what is loaded": (
        {f"{ACTOR}__checkpoint": {"load_contents": CONTENTS, "save_contents": CONTENTS}}, "W1887",
        "trainer.trainer_config.actor_rollout_ref.actor.checkpoint.load_contents", ("model", "optimizer", "extra"),
    ),
    "the number of GPUs of the loss": (
        {**CHORD, DERIVED: 7}, "W1841", "algorithm.policy_loss_fn_args.ngpus_trainer", 1,
    ),
    "a progress bar of the experience buffer": (
        {"buffer__trainer_input__experience_buffer": {"enable_progress_bar": True}}, "W1902",
        "buffer.trainer_input.experience_buffer.enable_progress_bar", True,
    ),
    "a progress bar of the taskset": (
        {f"{TASKSET}__enable_progress_bar": True}, "W1902", "buffer.explorer_input.taskset.enable_progress_bar", True,
    ),
    "older retries": (
        {"buffer__max_retry_times": 3, "buffer__max_retry_interval": 1}, "W1902", "buffer.max_retry_times", 3,
    ),
    "an older name of the budget": (
        {"trainer__ppo_max_token_len_per_gpu": 512}, "W1301", "trainer.max_token_len_per_gpu", 512,
    ),
    "raft without operators": (
        {"algorithm__algorithm_type": "raft"}, "W1832", "algorithm.policy_loss_fn", "sft",
    ),
    "nccl between parts": (
        {"mode": "explore", "synchronizer__sync_method": "nccl"}, "W1804", "synchronizer.sync_method", "checkpoint",
    ),
    "a service that is off": (
        {"model__tinker": {"enable": False, "base_model": "m"}}, "", "model.tinker.base_model", "m",
    ),
}  # fmt: skip
# What only a plugin or a package knows: the file by itself is understood.
NAMES = {
    "a workflow of a folder of its own": ({f"{TASKSET}__default_workflow_type": "learn_to_ask"}, "W1701"),
    "a reward of a package with the arguments of another version": (
        {f"{TASKSET}__default_reward_fn_type": "rm_gallery_reward", f"{TASKSET}__reward_fn_args": {"model_name": "m"}},
        "W1706",
    ),
}


def _examined(folder: Path, changes: dict[str, Any], *, schema_only: bool = True) -> tuple[Config, list[Finding]]:
    run = TinyRun(folder, copy.deepcopy(PLAIN)).change(**changes)
    (folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    plan, found = examine(folder / "run.yaml", catalogue=builtin_catalogue(), schema_only=schema_only, cwd=folder)
    return plan.stages[0].config, found


@pytest.mark.parametrize(("changes", "code", "key", "value"), FILES.values(), ids=FILES)
def test_what_published_files_write_is_understood(
    tmp_path: Path, changes: dict[str, Any], code: str, key: str, value: Any
) -> None:
    config, found = _examined(tmp_path, changes)
    assert not [p.render() for p in found if p.is_error]
    assert not code or any(p.code == code for p in found), [p.code for p in found]
    assert value_at(config, tuple(int(part) if part.isdigit() else part for part in key.split("."))) == value


@pytest.mark.parametrize(("changes", "code"), NAMES.values(), ids=NAMES)
def test_a_name_from_elsewhere_is_a_warning_of_the_file_and_an_error_of_the_run(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    assert [(p.code, p.is_error) for p in _examined(tmp_path, changes)[1] if p.code == code] == [(code, False)]
    strict = _examined(tmp_path, changes, schema_only=False)[1]
    assert (code.replace("W", "E"), True) in [(p.code, p.is_error) for p in strict]


def test_a_run_with_an_evaluation_named_like_its_taskset_keeps_them_apart(tmp_path: Path) -> None:
    run = TinyRun(tmp_path).change(buffer__explorer_input__eval_tasksets=[EVAL | {"path": "eval.jsonl"}])
    run.change(explorer__eval_interval=1)
    run.write_rows([{"question": "1+1=", "answer": "2"}, {"question": None, "answer": "3"}], "eval.jsonl")
    run.write_rows([{"question": f"{a}+1=", "answer": str(a + 1)} for a in range(4)] + [{"question": 7}])
    end = run.finish()
    assert end.status == 0, end.output
    assert any("eval/train/accuracy" in name for line in run.lines("explorer") for name in line)
    files = sorted(path.relative_to(run.job) for path in run.job.glob("buffer/quarantine/**/*.jsonl"))
    assert [str(file) for file in files] == ["buffer/quarantine/eval/train.jsonl", "buffer/quarantine/train.jsonl"]
