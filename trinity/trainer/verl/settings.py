"""The trainer's values, derived from a configuration."""

from __future__ import annotations

import dataclasses

import torch

from trinity.algorithm.building import build
from trinity.common.config import Config
from trinity.common.config.keys import ACTOR, KEYS, REFERENCE
from trinity.common.config.resolved import filled, loss_divisor, schema_of, temperature, writes_products
from trinity.common.config.verl_base import FsdpConfig
from trinity.common.config.verl_policy import ActorConfig
from trinity.trainer.verl.loss import LossFn
from trinity.trainer.verl.optim import LRSchedule, make_schedule
from trinity.trainer.verl.scorer import ActorSettings
from trinity.utils.device import has_bf16_units

FLOATS = {
    "fp32": torch.float32, "float32": torch.float32, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
    "fp16": torch.float16, "float16": torch.float16,
}  # fmt: skip


def tensor_size(config: Config) -> int:
    """Return how many workers share the matrices of a layer."""
    trainer = config.trainer
    return trainer.megatron.tensor_model_parallel_size if trainer.trainer_strategy == "megatron" else 1


def num_stages(config: Config) -> int:
    """Return the number of pipeline stages, which share the layers."""
    trainer = config.trainer
    return trainer.megatron.pipeline_model_parallel_size if trainer.trainer_strategy == "megatron" else 1


def is_supervised(config: Config) -> bool:
    """Return whether the algorithm trains on a dataset instead of rollouts."""
    return schema_of(config) != "experience"


def mini_batch_size(config: Config, written: int | None) -> int | None:
    """Return the experiences per optimizer step; None means all of a step.

    It is None if `written` is `train_batch_size`: a rollout may have several experiences, and a training step of
    `train_batch_size` rollouts is one mini-batch.
    """
    return None if written == config.buffer.train_batch_size else written


def actor_of(config: Config) -> ActorConfig:
    """Return `actor_rollout_ref.actor` of `trainer.trainer_config`."""
    return config.trainer.trainer_config.actor_rollout_ref.actor


def products_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Return the data type of matrix products.

    A type that the configuration writes (`actor.fsdp_config.mixed_precision.param_dtype`, else `.dtype`) is used as
    it is; the default is bfloat16 where the device has units for it, else float32.
    """
    return dtype_of(actor_of(config).fsdp_config, device)


def dtype_of(fsdp: FsdpConfig, device: torch.device) -> torch.dtype:
    """Return the type of products in a model's section; see `products_dtype`."""
    if writes_products(fsdp):
        assert fsdp.mixed_precision is not None, "it writes the type"
        return FLOATS[fsdp.mixed_precision.param_dtype]
    wanted = FLOATS[fsdp.dtype]
    if "dtype" in fsdp.model_fields_set or wanted == torch.float32 or has_bf16_units(device):
        return wanted
    return torch.float32


def actor_settings(config: Config) -> ActorSettings:
    """Return how a batch of the policy is split and stepped."""
    actor = actor_of(config)
    by_tokens = filled(config, ACTOR.use_dynamic_bsz)
    return ActorSettings(
        temperature=temperature(config, schema_of(config)),
        mini_batch_size=mini_batch_size(config, actor.ppo_mini_batch_size),
        max_tokens=filled(config, ACTOR.ppo_max_token_len_per_gpu) if by_tokens else None,
        max_rows=None if by_tokens else _rows(config, filled(config, ACTOR.ppo_micro_batch_size_per_gpu)),
        epochs=actor.ppo_epochs,
        shuffle_seed=actor.data_loader_seed if actor.shuffle else None,
        grad_clip=actor.grad_clip,
        normalizer=loss_divisor(config),
        averages_micro_batches=config.algorithm.loss_agg_scope == "micro_batch",
    )


def reference_settings(config: Config) -> ActorSettings:
    """Return how a batch is split when the reference scores it."""
    own = actor_settings(config)
    if filled(config, REFERENCE.log_prob_use_dynamic_bsz):
        limit = filled(config, REFERENCE.log_prob_max_token_len_per_gpu)
        return dataclasses.replace(own, max_tokens=limit, max_rows=None)
    size = filled(config, REFERENCE.log_prob_micro_batch_size_per_gpu)
    return dataclasses.replace(own, max_tokens=None, max_rows=_rows(config, size))


def _rows(config: Config, size: int) -> int:
    """Return the rows of `size` experiences; a pair has two."""
    return 2 * size if schema_of(config) == "dpo" else size


def policy_lr_schedule(config: Config, total_steps: int | None, *, start: int = 0) -> LRSchedule:
    """Return the policy's learning rate of each training step.

    The first `start` steps do not train the policy.

    Raises:
        ConfigError: the rate depends on the number of all steps, and `total_steps` is None.
    """
    return make_schedule(config, KEYS.algorithm.optimizer, total_steps, start=start)


def loss_of(config: Config) -> LossFn:
    """Return the loss of the algorithm section."""
    algorithm = config.algorithm
    return LossFn(
        build(algorithm, "policy_loss_fn", default="none"),
        build(algorithm, "kl_loss_fn", default="none"),
        build(algorithm, "entropy_loss_fn", default="none"),
        loss_agg_mode=filled(config, KEYS.algorithm.loss_agg_mode),
    )
