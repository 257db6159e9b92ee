"""How stages inherit, how `--set` reaches them, and where a value comes from."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from tests.common.config.rows import with_
from tests.common.config.test_bad_input import find
from trinity.common.config import Plan, origins

STAGES = (
    MINIMAL
    + """\
  total_steps: 7
  trainer_input:
    experience_buffer: {name: queue_one, max_read_timeout: 5}
algorithm:
  kl_loss_fn: k3
  kl_loss_fn_args: {kl_coef: 0.5}
  optimizer: {lr: 1e-4, weight_decay: 0.2}
synchronizer: {sync_method: nccl}
trainer: {total_steps: 7}
stages:
- stage_name: sft_warmup
  mode: train
  algorithm:
    algorithm_type: sft
    optimizer: {lr: 1e-3}
  buffer:
    train_batch_size: 64
    total_steps: 100
    trainer_input: {experience_buffer: {name: sft_buffer, path: d.jsonl}}
- stage_name: rft
  buffer: {explorer_input: {taskset: {split: hard}}}
"""
)


@pytest.fixture
def plan(examined: Examine) -> Plan:
    plan, problems = examined(STAGES)
    assert not [p.render() for p in problems if p.is_error]
    return plan


def test_stages_keep_their_order_and_suffix_the_name(plan: Plan) -> None:
    assert [stage.name for stage in plan.stages] == ["sft_warmup", "rft"]
    assert [stage.config.name for stage in plan.stages] == ["n/sft_warmup", "n/rft"]
    assert plan.stages[0].config.checkpoint_job_dir.endswith("/p/n/sft_warmup")


@pytest.mark.difference("Stages")
def test_a_stage_inherits_key_by_key(plan: Plan) -> None:
    config = plan.stages[1].config
    taskset = config.buffer.explorer_input.taskset
    assert taskset is not None
    assert (taskset.split, taskset.path, taskset.name) == ("hard", "data.jsonl", "train")
    assert (config.algorithm.kl_loss_fn, config.algorithm.optimizer.lr) == ("k3", 1e-4)


def test_another_algorithm_takes_its_own_defaults_but_keeps_the_optimizer(plan: Plan) -> None:
    algorithm = plan.stages[0].config.algorithm
    assert (algorithm.policy_loss_fn, algorithm.kl_loss_fn) == ("sft", "none")
    assert (algorithm.optimizer.lr, algorithm.optimizer.weight_decay) == (1e-3, 0.2)


def test_a_buffer_of_another_name_is_replaced(plan: Plan) -> None:
    output = plan.stages[0].config.buffer.trainer_input.experience_buffer
    assert output is not None
    assert (output.name, output.storage_type, output.max_read_timeout) == ("sft_buffer", "file", 1800.0)
    kept = plan.stages[1].config.buffer.trainer_input.experience_buffer
    assert kept is not None
    assert (kept.name, kept.max_read_timeout) == ("queue_one", 5.0)


def test_own_steps_win_over_inherited_ones(plan: Plan) -> None:
    assert plan.stages[0].config.trainer.total_steps == 100
    assert plan.stages[1].config.trainer.total_steps == 7


def test_an_inherited_transport_resolves_and_an_own_one_is_told(plan: Plan, examined: Examine) -> None:
    assert plan.stages[0].config.synchronizer.sync_method == "checkpoint"
    assert plan.stages[1].config.synchronizer.sync_method == "memory"
    text = STAGES.replace("  mode: train\n", "  mode: train\n  synchronizer: {sync_method: nccl}\n")
    problem = find(examined(text)[1], "W1804", "stages[0].synchronizer.sync_method")
    assert problem.line == 25


def test_keys_without_effect_are_silent_only_if_inherited(plan: Plan, examined: Examine) -> None:
    assert not [w for w in plan.warnings if w.code == "W1902"]
    text = STAGES.replace("  mode: train\n", "  mode: train\n  explorer: {max_timeout: 5}\n")
    assert find(examined(text)[1], "W1902", "stages[0].explorer").line == 25


def test_a_wrong_global_key_is_found_although_every_stage_hides_it(examined: Examine) -> None:
    text = STAGES.replace("  kl_loss_fn: k3\n", "  kl_los_fn: k3\n")
    assert find(examined(text)[1], "E1203", "algorithm.kl_los_fn").suggestion == "did you mean `kl_loss_fn`?"


def test_set_reaches_the_global_part_and_a_stage(examined: Examine) -> None:
    plan, problems = examined(
        STAGES, "seed=7", "stages[0].algorithm.optimizer.lr=2e-5", "stages[1].buffer.batch_size=2"
    )
    assert not [p for p in problems if p.is_error]
    assert [stage.config.seed for stage in plan.stages] == [7, 7]
    assert plan.stages[0].config.algorithm.optimizer.lr == 2e-5
    assert plan.stages[1].config.buffer.batch_size == 2


def test_a_set_value_that_a_stage_hides_is_reported(examined: Examine) -> None:
    problem = find(examined(STAGES, "algorithm.optimizer.lr=2e-5")[1], "W1603", "algorithm.optimizer.lr")
    assert problem.file == "--set #1"
    assert "stages[0].algorithm.optimizer.lr=" in (problem.suggestion or "")


@pytest.mark.parametrize(
    ("override", "code", "key", "hint"),
    [
        ("algorithm.optimzer.lr=1e-5", "E1203", "algorithm.optimzer", "`optimizer`"),
        ("buffer.batch_size=", "E1101", "buffer.batch_size", None),
        ("buffer.batch_size", "E1008", "buffer.batch_size", "section.key=value"),
        ("=3", "E1008", "", "section.key=value"),
        ("stages[7].mode=train", "E1009", "stages[7].mode", None),
        ("seed.x[1]=3", "E1009", "seed.x[1]", None),
        ("seed=[1, 2]", "E1101", "seed", None),
        pytest.param(".".join("a" * 3000) + "=1", "E1007", "a.a.a.a", None, id="deep key"),
        pytest.param("seed=${" + ".".join("a" * 3000) + "}", "E1402", "seed", None, id="deep reference"),
    ],
)
def test_wrong_overrides_name_their_number(
    examined: Examine, override: str, code: str, key: str, hint: str | None
) -> None:
    problem = find(examined(MINIMAL, override)[1], code, key)
    assert problem.file == "--set #1"
    assert hint is None or hint in (problem.suggestion or "")


def test_the_origin_of_a_value_is_a_chain(examined: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_TEST_ROOT", "/tmp/root")
    text = STAGES + "checkpoint_root_dir: ${oc.env:TRINITY_TEST_ROOT}\n"
    plan, _ = examined(text, "stages[1].algorithm.kl_loss_fn=k2")
    rows = {
        row["key"]: row["origin"] for row in origins(plan.stages[1].config, plan.stages[1].tree, plan.stages[1].derived)
    }
    assert [place.rsplit("/", 1)[-1] for place in rows["algorithm.kl_loss_fn"]] == ["--set #1", "run.yaml:17"]
    assert rows["checkpoint_root_dir"][-1] == "environment variable TRINITY_TEST_ROOT"
    assert rows["explorer.max_timeout"] == ["default"]
    assert rows["buffer.train_batch_size"] == ["derived: batch_size (4) x repeat_times (8)"]
    sft = {
        row["key"]: row["origin"] for row in origins(plan.stages[0].config, plan.stages[0].tree, plan.stages[0].derived)
    }
    assert [place.rsplit("/", 1)[-1] for place in sft["algorithm.optimizer.lr"]] == ["run.yaml:27", "run.yaml:19"]


def test_interpolations_read_the_merged_values(examined: Examine) -> None:
    text = with_("seed: ${buffer.batch_size}\nstages:\n- stage_name: a\n- stage_name: b\n  buffer: {batch_size: 9}\n")
    plan, problems = examined(text)
    assert not [p.render() for p in problems if p.is_error]
    assert [stage.config.seed for stage in plan.stages] == [4, 9]


def test_interpolations_read_defaults_lists_and_decoded_values(
    examined: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_TEST_SEED", "5")
    text = with_(
        "seed: ${oc.decode:${oc.env:TRINITY_TEST_SEED}}\ngroup: ${oc.env:TRINITY_TEST_NOPE,fallback}\n"
        "explorer: {runner_per_model: '${buffer.total_epochs}', env_vars: {A: '${explorer.max_timeout}'}}\n"
    )
    config = examined(text)[0].stages[0].config
    assert (config.seed, config.group, config.explorer.runner_per_model) == (5, "fallback", 1)
    assert config.explorer.env_vars == {"A": "1800.0"}


def test_an_escaped_interpolation_is_text(examined: Examine) -> None:
    plan, problems = examined(with_("", path="path: 'a/\\${b}.jsonl'"))
    assert not problems
    taskset = plan.stages[0].config.buffer.explorer_input.taskset
    assert taskset is not None and taskset.path == "a/${b}.jsonl"


def test_a_stage_that_others_follow_must_leave_its_weights(examined: Examine) -> None:
    problem = find(examined(STAGES, "stages[0].trainer.save_hf_checkpoint=never")[1], "E1605",
                   "stages[0].trainer.save_hf_checkpoint")  # fmt: skip
    assert "`save_hf_checkpoint: last`" in (problem.suggestion or "") and "sft_warmup" in problem.message
    assert not [p for p in examined(STAGES, "stages[1].trainer.save_hf_checkpoint=never")[1] if p.is_error]
    everywhere = [p.key for p in examined(STAGES, "trainer.save_hf_checkpoint=never")[1] if p.is_error]
    assert everywhere == ["trainer.save_hf_checkpoint"]


def test_a_stage_after_another_adds_no_adapter_that_is_merged_already(examined: Examine) -> None:
    adapters = "model.lora_configs=[{path: old, lora_rank: 8}]"
    problem = find(examined(STAGES, adapters)[1], "E1874", "model.lora_configs[0].path")
    assert "stage rft starts from the weights of the stage before it" in problem.message
    plan, problems = examined(STAGES, "model.lora_configs=[{lora_rank: 8}]", "synchronizer.sync_method=auto")
    assert not [p.render() for p in problems if p.is_error]
    derived = {d.key: d.value for d in plan.stages[1].derived}
    assert derived["model.lora_configs[0].is_dummy"] is True
    assert [a.lora_rank for a in plan.stages[1].config.model.lora_configs or ()] == [8]
