"""The critic's section: when there is a critic, what it takes from the actor, what has no effect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.common.config.conftest import MINIMAL, Examine

CRITIC = "trainer.trainer_config.critic"
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
PPO = "algorithm.advantage_fn=ppo"


@pytest.mark.difference("Whether there is a critic")
def test_an_advantage_that_reads_values_turns_the_critic_on(examined: Examine) -> None:
    plan, problems = examined(MINIMAL, PPO)
    assert problems == []
    stage = plan.stages[0]
    assert stage.config.trainer.trainer_config.critic.enable is True
    reasons = {d.key: d.reason for d in stage.derived}
    assert reasons[f"{CRITIC}.enable"] == "advantage_fn ppo reads values"
    assert reasons["model.critic_model_path"] == "model.model_path"
    plain = examined(MINIMAL)[0].stages[0]
    assert plain.config.trainer.trainer_config.critic.enable is None
    assert not [d.key for d in plain.derived if d.key.startswith(CRITIC)]


@pytest.mark.difference("Section of the critic")
def test_what_is_left_out_is_taken_from_the_actor(examined: Examine) -> None:
    plan, problems = examined(
        MINIMAL, PPO, f"{ACTOR}.ppo_epochs=3", f"{ACTOR}.shuffle=true", "trainer.grad_clip=0.5",
        "trainer.use_dynamic_bsz=false", "algorithm.loss_agg_mode=seq-mean-token-mean", "trainer.critic_warmup=7",
        "algorithm.optimizer.lr_warmup_steps=9", "trainer.trainer_config.actor_rollout_ref.model"
        ".enable_gradient_checkpointing=false", f"{ACTOR}.optim.lr_scheduler_type=cosine",
    )  # fmt: skip
    assert problems == []
    config = plan.stages[0].config
    critic = config.trainer.trainer_config.critic
    assert (critic.ppo_epochs, critic.shuffle, critic.grad_clip, critic.use_dynamic_bsz) == (3, True, 0.5, False)
    assert (critic.loss_agg_mode, critic.ppo_mini_batch_size) == ("seq-mean-token-mean", 32)
    assert (critic.ppo_max_token_len_per_gpu, critic.forward_max_token_len_per_gpu) == (512, 512)
    assert (critic.ppo_micro_batch_size_per_gpu, critic.forward_micro_batch_size_per_gpu) == (8, 8)
    assert (critic.optim.lr, critic.optim.lr_warmup_steps, critic.cliprange_value) == (1e-5, 9, 0.5)
    assert critic.optim.lr_scheduler_type == "cosine" and not critic.model.enable_gradient_checkpointing
    assert config.trainer.critic_warmup == config.trainer.trainer_config.trainer.critic_warmup == 7


def test_a_budget_below_one_sequence_is_raised(examined: Examine) -> None:
    plan, _ = examined(MINIMAL, PPO, f"{CRITIC}.ppo_max_token_len_per_gpu=60")
    assert plan.stages[0].config.trainer.trainer_config.critic.ppo_max_token_len_per_gpu == 128
    assert any(d.reason.startswith("raised from 60") for d in plan.stages[0].derived)


REFUSED: list[tuple[tuple[str, ...], str, str, str]] = [
    ((f"{CRITIC}.enable=true",), "E1816", f"{CRITIC}.enable", "grpo reads no values"),
    ((PPO, f"{CRITIC}.enable=false"), "E1816", f"{CRITIC}.enable", "ppo reads values"),
    ((PPO, f"{CRITIC}.ppo_mini_batch_size=7"), "W1816", f"{CRITIC}.ppo_mini_batch_size", "train_batch_size (32)"),
    (
        (PPO, "model.critic_model_path=/a", f"{CRITIC}.model.path=/b"),
        "E1815", f"{CRITIC}.model.path", "is /b, but model.critic_model_path is /a",
    ),
    (
        (PPO, f"{CRITIC}.optim.warmup_style=cosine", f"{CRITIC}.optim.lr_scheduler_type=linear"),
        "E1815", f"{CRITIC}.optim.warmup_style", "lr_scheduler_type is linear",
    ),
    (
        (PPO, f"{CRITIC}.fsdp={{dtype: fp32}}", f"{CRITIC}.model.fsdp_config.dtype=fp32"),
        "E1815", f"{CRITIC}.fsdp", "two places of one thing",
    ),
    (
        (PPO, "trainer.max_checkpoints_to_keep=3", "trainer.trainer_config.trainer.max_critic_ckpt_to_keep=5"),
        "W1816", "trainer.trainer_config.trainer.max_critic_ckpt_to_keep", "to_keep (3): a checkpoint holds policy and",
    ),
    ((PPO, f"{CRITIC}.rollout_n=3"), "E1900", f"{CRITIC}.rollout_n", "not available yet"),
    ((PPO, f"{CRITIC}.strategy=megatron"), "E1858", f"{CRITIC}.strategy", "divided alike"),
    ((PPO, f"{CRITIC}.optim.num_cycles=2"), "E1900", f"{CRITIC}.optim.num_cycles", "not available yet"),
    ((PPO, f"{CRITIC}.model.fsdp_config.forward_only=true"), "E1900", f"{CRITIC}.model.fsdp_config.forward_only", ""),
    ((PPO, f"{CRITIC}.cliprange_value=-1"), "E1302", f"{CRITIC}.cliprange_value", ""),
    (
        (PPO, "algorithm.algorithm_type=sft", "mode=train", "buffer.trainer_input.experience_buffer="
         "{name: d, path: d.jsonl, storage_type: file}"),
        "E1807", "algorithm.advantage_fn", "trains on a dataset without rewards",
    ),
    (("trainer.critic_warmup=3",), "W1902", "trainer.critic_warmup", "no critic"),
    ((f"{CRITIC}.cliprange_value=0.2",), "W1902", CRITIC, "no critic"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "code", "key", "words"), REFUSED, ids=[row[2] + row[1] for row in REFUSED])
def test_what_does_not_fit_is_said(
    examined: Examine, settings: tuple[str, ...], code: str, key: str, words: str
) -> None:
    problems: Any = examined(MINIMAL, *settings)[1]
    assert [(p.code, p.key) for p in problems] == [(code, key)]
    assert words in problems[0].message


def test_a_key_that_only_repeats_another_is_fine(examined: Examine) -> None:
    keys = f"{CRITIC}.rollout_n=8", f"{CRITIC}.ppo_mini_batch_size=32", f"{CRITIC}.enable=true"
    kept = (
        "trainer.trainer_config.trainer.max_actor_ckpt_to_keep=5",
        "trainer.trainer_config.trainer.max_critic_ckpt_to_keep=5",
    )
    assert examined(MINIMAL, PPO, *keys, *kept)[1] == []


@pytest.mark.parametrize(
    ("policies", "critics", "plain", "kept", "told"),
    [
        (5, 3, None, 5, "max_critic_ckpt_to_keep"),
        (3, 5, None, 5, "max_actor_ckpt_to_keep"),
        (None, 3, None, 0, "max_critic_ckpt_to_keep"),
        (3, 5, 4, 4, "max_actor_ckpt_to_keep max_critic_ckpt_to_keep"),
        (4, 4, 4, 4, ""),
        (5, None, None, 5, ""),
    ],
)
def test_of_two_numbers_of_checkpoints_the_larger_is_kept_and_the_other_told(
    examined: Examine, policies: int | None, critics: int | None, plain: int | None, kept: int, told: str
) -> None:
    section = "trainer.trainer_config.trainer"
    numbers = {f"{section}.max_actor_ckpt_to_keep": policies, f"{section}.max_critic_ckpt_to_keep": critics,
               "trainer.max_checkpoints_to_keep": plain}  # fmt: skip
    settings = [f"{key}={number}" for key, number in numbers.items() if number is not None]
    plan, problems = examined(MINIMAL, PPO, *settings)
    assert [(p.code, p.key) for p in problems] == [("W1816", f"{section}.{name}") for name in told.split()]
    assert plan.stages[0].config.trainer.max_checkpoints_to_keep == kept


def test_the_verl_name_of_the_critics_path_is_its_path(examined: Examine) -> None:
    plan, problems = examined(MINIMAL, PPO, f"{CRITIC}.model.path=/critic")
    assert problems == [] and plan.stages[0].config.model.critic_model_path == "/critic"
