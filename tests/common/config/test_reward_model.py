"""The section of the reward model: what it takes, what it refuses, that it is inert where it is off."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine

SECTION = "trainer.trainer_config.reward_model"
ON = (f"{SECTION}.enable=true", f"{SECTION}.model.path=/rm")
TASKSET = "buffer.explorer_input.taskset"
PUBLISHED = """\
trainer:
  trainer_config:
    actor_rollout_ref: {model: {path: /models/tiny, external_lib: null}}
    reward_model:
      enable: ENABLE
      model:
        input_tokenizer: ${actor_rollout_ref.model.path}  # set this to null if the chat template is identical
        path: ~/models/Anomy-RM-v0.1
        external_lib: ${actor_rollout_ref.model.external_lib}
        fsdp_config:
          min_num_params: 0
          param_offload: False
      micro_batch_size: 64
      max_length: null
"""


@pytest.mark.parametrize("enable", ["True", "False"])
def test_the_published_section_is_accepted(examined: Examine, enable: str) -> None:
    plan, problems = examined(MINIMAL + PUBLISHED.replace("ENABLE", enable))
    assert [p.code for p in problems if p.is_error] == []
    section = plan.stages[0].config.trainer.trainer_config.reward_model
    assert section.enable is (enable == "True") and section.model.input_tokenizer == "/models/tiny"
    assert section.micro_batch_size_per_gpu == (64 if section.enable else None)


def test_a_section_that_is_off_needs_nothing(examined: Examine) -> None:
    assert examined(MINIMAL, f"{SECTION}.use_dynamic_bsz=true", f"{SECTION}.max_length=7")[1] == []


ROWS = [
    ((f"{SECTION}.enable=true",), "E1860", f"{SECTION}.model.path"),
    ((*ON, f"{SECTION}.worker_args={{a: 1}}"), "E1703", f"{SECTION}.worker_args.a"),
    ((*ON, f"{SECTION}.reward_manager=dapo"), "E1900", f"{SECTION}.reward_manager"),
    ((*ON, f"{SECTION}.model.fsdp_config.param_offload=true"), "E1900", f"{SECTION}.model.fsdp_config.param_offload"),
    ((*ON, f"{SECTION}.worker=judgge"), "E1701", f"{SECTION}.worker"),
    ((f"{TASKSET}.default_reward_fn_type=no_reward",), "E1862", f"{TASKSET}.default_reward_fn_type"),
    (
        (*ON, "buffer.explorer_input.eval_tasksets=[{name: e, path: e.jsonl, default_workflow_type: math_workflow, "
         "default_reward_fn_type: no_reward}]"),
        "E1862", "buffer.explorer_input.eval_tasksets[0].default_reward_fn_type",
    ),
    (
        (*ON, "mode=train", "algorithm.algorithm_type=sft",
         "buffer.trainer_input.experience_buffer={name: d, path: d.jsonl, storage_type: file}"),
        "W1902", f"{SECTION}.enable",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "code", "key"), ROWS, ids=[f"{row[1]} {row[2]}" for row in ROWS])
def test_what_does_not_fit_is_said(examined: Examine, settings: tuple[str, ...], code: str, key: str) -> None:
    assert [(p.code, p.key) for p in examined(MINIMAL, *settings)[1]] == [(code, key)]


def test_rollouts_without_a_reward_function_are_fine_with_a_reward_model(examined: Examine) -> None:
    assert examined(MINIMAL, *ON, f"{TASKSET}.default_reward_fn_type=no_reward")[1] == []
