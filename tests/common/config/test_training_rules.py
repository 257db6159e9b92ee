"""Adapters and schedules that cannot be what was meant: the code, the key, the line and a part of the way out."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import Examine
from tests.common.config.rows import with_
from tests.common.config.test_bad_input import find
from trinity.common.config.keys import key_named, path_of
from trinity.common.config.tree import value_at

QUEUE = with_("  train_batch_size: 8\n  trainer_input: {experience_buffer: {name: q}}\nmode: train\n")


def with_adapter(text: str) -> str:
    """Return the minimal file with `text` as `model.lora_configs`, from line 6 on."""
    return with_("", max_model_len=f"max_model_len: 128\n  lora_configs: {text}")


def with_optimizer(text: str) -> str:
    """Return a file that trains a queue alone, with `text` in the optimizer's section, in line 16."""
    return QUEUE + f"algorithm: {{optimizer: {{{text}}}}}\n"


ROWS = {
    "two adapters": (with_adapter("[{}, {}]"), "E1870", "model.lora_configs", 6, "one entry"),
    "no rank": (with_adapter("[{lora_rank: 0}]"), "E1302", "model.lora_configs[0].lora_rank", 6, ""),
    "path, and made by the run": (
        with_adapter("[{path: a, is_dummy: true}]"), "E1872", "model.lora_configs[0].is_dummy", 6, "remove",
    ),
    "path, and a rank": (
        with_adapter("\n  - path: a\n    lora_rank: 8"), "W1902", "model.lora_configs[0].lora_rank", 8, "",
    ),
    "lora_dtype": (
        with_adapter("[{lora_dtype: bfloat16}]"), "E1900", "model.lora_configs[0].lora_dtype", 6, "auto, float32",
    ),
    "adapter by veRL's key": (
        with_("trainer: {trainer_config: {actor_rollout_ref: {model: {lora_rank: 8}}}}\n"), "E1900",
        "trainer.trainer_config.actor_rollout_ref.model.lora_rank", 13, "`model.lora_configs`",
    ),
    **{
        f"veRL's {key}": (
            with_(f"trainer: {{trainer_config: {{actor_rollout_ref: {{actor: {{{key}: {value}}}}}}}}}\n"), "E1816",
            f"trainer.trainer_config.actor_rollout_ref.actor.{key}", 13, f"write `algorithm.{ours}`",
        )
        for key, value, ours in (
            ("clip_ratio", 0.3, "policy_loss_fn_args.clip_range"),
            ("clip_ratio_low", 0.3, "policy_loss_fn_args.clip_range_low"),
            ("clip_ratio_high", 0.3, "policy_loss_fn_args.clip_range_high"),
            ("clip_ratio_c", 4, "policy_loss_fn_args.clip_ratio_c"),
            ("entropy_coeff", 0.01, "entropy_loss_fn_args.entropy_coef"),
            ("kl_loss_coef", 0.01, "kl_loss_fn_args.kl_coef"),
            ("kl_loss_type", "low_var_kl", "kl_loss_fn"),
        )
    },
    "veRL's penalty": (
        with_("trainer: {trainer_config: {algorithm: {kl_ctrl: {target_kl: 0.2}}}}\n"), "E1816",
        "trainer.trainer_config.algorithm.kl_ctrl.target_kl", 13, "write `algorithm.kl_penalty_fn_args.target_kl`",
    ),
    "schedule": (
        with_optimizer("lr_scheduler_type: cosine"), "E1873", "algorithm.optimizer.lr_scheduler_type", 16,
        "trainer.total_steps",
    ),
    "older name of it": (
        with_optimizer("warmup_style: linear"), "E1873", "algorithm.optimizer.warmup_style", 16, "trainer.total_steps",
    ),
    "warm-up as a share": (
        with_optimizer("lr_warmup_steps_ratio: 0.1"), "E1873", "algorithm.optimizer.lr_warmup_steps_ratio", 16,
        "trainer.total_steps",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code", "key", "line", "hint"), ROWS.values(), ids=ROWS)
def test_what_cannot_be_meant_is_named_with_place_and_way_out(
    examined: Examine, text: str, code: str, key: str, line: int, hint: str
) -> None:
    problem = find(examined(text)[1], code, key)
    assert (problem.line, problem.is_error) == (line, code.startswith("E"))
    assert hint in (problem.suggestion or "")


def test_schedules_with_an_end_or_without_need_of_one_are_accepted(examined: Examine) -> None:
    for text in (
        with_optimizer("lr_scheduler_type: cosine") + "trainer: {total_steps: 9}\n",
        with_optimizer("lr_warmup_steps: 2, lr_warmup_steps_ratio: 0.1"),
        with_("algorithm: {optimizer: {lr_scheduler_type: linear}}\n"),
    ):
        assert not [p.render() for p in examined(text)[1] if p.code == "E1873"]


def test_a_name_of_verl_that_repeats_what_holds_is_fine(examined: Examine) -> None:
    same = "clip_ratio: 0.2, kl_loss_coef: 0.001, kl_loss_type: k2, entropy_coeff: 0"
    text = with_(f"trainer: {{trainer_config: {{actor_rollout_ref: {{actor: {{{same}}}}}}}}}\n")
    assert [problem.code for problem in examined(text)[1] if problem.key.startswith("trainer.")] == []


@pytest.mark.difference("LoRA without `path`")
def test_an_adapter_needs_no_more_than_an_empty_entry(examined: Examine) -> None:
    plan, problems = examined(with_adapter("[{}]"))
    assert not [p.render() for p in problems if p.is_error]
    adapter = (plan.stages[0].config.model.lora_configs or ())[0]
    assert (adapter.lora_rank, adapter.lora_alpha, adapter.target_modules) == (32, 32, "all-linear")
    assert adapter.is_dummy and plan.stages[0].config.synchronizer.sync_method == "memory"


def test_the_two_names_of_an_offload_switch_hold_one_value(examined: Examine) -> None:
    def values(text: str) -> tuple[bool, bool]:
        plan, problems = examined(with_(text))
        assert not [p.render() for p in problems if p.is_error]
        trainer = plan.stages[0].config.trainer
        return trainer.param_offload, trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.param_offload

    tree = "trainer: {%strainer_config: {actor_rollout_ref: {actor: {fsdp_config: {param_offload: %s}}}}}\n"
    assert values("trainer: {param_offload: true}\n") == (True, True)
    assert values(tree % ("", "true")) == (True, True)
    assert values(tree % ("param_offload: true, ", "false")) == (False, False)


TREE = "trainer.trainer_config"
ACTOR = f"{TREE}.actor_rollout_ref.actor"
PRECEDENCE = {  # value of trainer.*, of the veRL tree, and the default
    "trainer.grad_clip": (f"{ACTOR}.grad_clip", 3.0, 0.5, 1.0),
    "trainer.trainer_strategy": (f"{ACTOR}.strategy", "fsdp", "fsdp2", "fsdp"),
    "trainer.use_dynamic_bsz": (f"{ACTOR}.use_dynamic_bsz", True, False, True),
    "trainer.max_token_len_per_gpu": (f"{ACTOR}.ppo_max_token_len_per_gpu", 512, 1024, 256),
    "trainer.balance_batch": (f"{TREE}.trainer.balance_batch", True, False, True),
    "trainer.critic_warmup": (f"{TREE}.trainer.critic_warmup", 3, 2, 0),
    "trainer.param_offload": (f"{ACTOR}.fsdp_config.param_offload", True, False, False),
    "trainer.optimizer_offload": (f"{ACTOR}.fsdp_config.optimizer_offload", True, False, False),
}


@pytest.mark.parametrize("plain", PRECEDENCE)
def test_the_verl_tree_wins_over_the_section_and_that_over_the_default(examined: Examine, plain: str) -> None:
    detailed, value, explicit, default = PRECEDENCE[plain]
    cases = {
        (f"{plain}={value}", f"{detailed}={explicit}"): explicit,
        (f"{plain}={explicit}", f"{detailed}={value}"): value,
        (f"{plain}={value}",): value,
        (f"{plain}={explicit}",): explicit,
        (): default,
    }
    for overrides, expected in cases.items():
        config = examined(QUEUE, *overrides)[0].stages[0].config
        for key in (plain, detailed):
            assert value_at(config.model_dump(), path_of(key_named(key))) == expected, (key, overrides)
