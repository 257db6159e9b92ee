"""From a configuration to the values that the trainer computes with."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from trinity.algorithm import ALGORITHM_TYPE, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN, PolicyLossFn
from trinity.algorithm.aggregation import LOSS_AGG_MODES
from trinity.common.config import Config
from trinity.common.config.mixture import num_expert_rows
from trinity.common.config.verl import ActorConfig
from trinity.common.config.verl_base import FsdpConfig
from trinity.common.constants import SyncStyle
from trinity.common.errors import ConfigError
from trinity.trainer.verl.loss import TOKEN_MEAN, LossFn
from trinity.trainer.verl.optim import Schedule, make_schedule
from trinity.trainer.verl.scorer import ActorSettings
from trinity.utils.device import has_bf16_units
from trinity.utils.registry import Registry

DEFAULT_MICRO_ROWS = 4
FLOATS = {
    "fp32": torch.float32, "float32": torch.float32, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
    "fp16": torch.float16, "float16": torch.float16,
}  # fmt: skip


def num_workers(config: Config) -> int:
    """Return the processes that train the model: as written, else one a GPU of the trainer."""
    return int(config.trainer.num_workers or config.cluster.trainer_gpu_num or 1)


def tensor_size(config: Config) -> int:
    """Return how many workers share the matrices of a layer."""
    trainer = config.trainer
    return trainer.megatron.tensor_model_parallel_size if trainer.trainer_strategy == "megatron" else 1


def num_stages(config: Config) -> int:
    """Return how many workers, or groups of them that share matrices, share the layers."""
    trainer = config.trainer
    return trainer.megatron.pipeline_model_parallel_size if trainer.trainer_strategy == "megatron" else 1


def schema_of(config: Config) -> str:
    """Return the kind of experiences that the algorithm trains on: `sft`, `cpt`, `dpo` or `experience`."""
    return ALGORITHM_TYPE.contents[config.algorithm.algorithm_type].schema


def is_supervised(config: Config) -> bool:
    """Return whether the algorithm trains on a dataset, not on rollouts."""
    return schema_of(config) != "experience"


def planned_steps(config: Config, explore_steps: int | None = None) -> int | None:
    """Return the number of training steps of the run, or None where only the data know.

    Args:
        config: resolved configuration.
        explore_steps: explore steps that the explorer plans, where one runs beside the trainer.
    """
    if config.trainer.total_steps is not None:
        return int(config.trainer.total_steps)
    buffer = config.buffer
    if config.mode != "both":
        return None if buffer.total_steps is None else int(buffer.total_steps)
    steps = buffer.total_steps if buffer.total_steps is not None else explore_steps
    if steps is None:
        return None
    if _uses_again(config):
        # Rollouts of earlier steps fill the batches: the schedule says how many steps there are, not the rollouts.
        sync = config.synchronizer
        if sync.sync_style != SyncStyle.FIXED:
            return None
        ours, theirs = (
            each or sync.sync_interval for each in (sync.trainer_sync_interval, sync.explorer_sync_interval)
        )
        return max(1, -(-steps * ours // theirs))
    produced = steps * buffer.batch_size * (config.algorithm.repeat_times or 1)
    return max(1, -(-produced // num_rollouts(config)))


def _uses_again(config: Config) -> bool:
    buffer = config.buffer.trainer_input.experience_buffer
    return buffer is not None and buffer.replay_buffer.enable and buffer.replay_buffer.reuse_cooldown_time is not None


def train_batch_size(config: Config) -> int:
    """Return the rollouts of a training step; of demonstrations the experiences."""
    return int(config.buffer.train_batch_size or config.buffer.batch_size * (config.algorithm.repeat_times or 1))


def num_rollouts(config: Config) -> int:
    """Return the experiences of a training step that come from the experience buffer, not from an expert."""
    size = train_batch_size(config)
    if config.algorithm.sample_strategy != "mix":
        return size
    ratio = (config.algorithm.sample_strategy_args or {}).get("expert_data_ratio", 0.5)
    return size - num_expert_rows(ratio, size)


def mini_batch_size(config: Config, written: int | None) -> int | None:
    """Return the experiences of an optimizer step; None, all of a step's, where `written` is `train_batch_size`.

    A rollout may have several experiences, and a step of `train_batch_size` rollouts is one mini-batch.
    """
    return None if written == train_batch_size(config) else written


def temperature(config: Config) -> float:
    """Return the divisor of the logits: that under which the engine reports log-probabilities; 1 for greedy."""
    if is_supervised(config):
        return 1.0
    taskset = config.buffer.explorer_input.taskset
    value = None if taskset is None else taskset.rollout_args.temperature
    return float(config.model.temperature if value is None else value) or 1.0


def actor_of(config: Config) -> ActorConfig:
    """Return the actor's part of the veRL tree."""
    return config.trainer.trainer_config.actor_rollout_ref.actor


def products_dtype(config: Config, device: torch.device) -> torch.dtype:
    """Return the number type of matrix products.

    A type that the configuration writes (`actor.fsdp_config.mixed_precision.param_dtype`, else `.dtype`) is used as
    it is; the default is bfloat16 where the device has units for it, else float32.
    """
    return dtype_of(actor_of(config).fsdp_config, device)


def dtype_of(fsdp: FsdpConfig, device: torch.device) -> torch.dtype:
    """Return the number type that a model's section asks for on `device`; see `products_dtype`."""
    if writes_products(fsdp):
        assert fsdp.mixed_precision is not None, "it writes the type"
        return FLOATS[fsdp.mixed_precision.param_dtype]
    wanted = FLOATS[fsdp.dtype]
    if "dtype" in fsdp.model_fields_set or wanted == torch.float32 or has_bf16_units(device):
        return wanted
    return torch.float32


def writes_products(fsdp: FsdpConfig) -> bool:
    """Return whether a section has `mixed_precision.param_dtype`."""
    return fsdp.mixed_precision is not None and "param_dtype" in fsdp.mixed_precision.model_fields_set


def token_limit(config: Config) -> int:
    """Return the most tokens of a micro-batch of the actor, where micro-batches are made by tokens."""
    written = actor_of(config).ppo_max_token_len_per_gpu or config.trainer.max_token_len_per_gpu
    return int(written or 2 * (config.model.max_model_len or 4096))


def actor_settings(config: Config) -> ActorSettings:
    """Return how a batch is split and stepped."""
    actor, trainer = actor_of(config), config.trainer
    is_dynamic = trainer.use_dynamic_bsz if actor.use_dynamic_bsz is None else actor.use_dynamic_bsz
    size = _micro_rows(config)
    # Sizes count experiences, and a pair is one of two rows.
    rows = 2 * size if schema_of(config) == "dpo" else size
    seed = config.seed if actor.data_loader_seed is None else actor.data_loader_seed
    clip = trainer.grad_clip if actor.grad_clip is None else actor.grad_clip
    return ActorSettings(
        temperature=temperature(config),
        mini_batch_size=mini_batch_size(config, actor.ppo_mini_batch_size),
        max_tokens=token_limit(config) if is_dynamic else None,
        max_rows=None if is_dynamic else rows,
        epochs=actor.ppo_epochs,
        shuffle_seed=seed if actor.shuffle else None,
        grad_clip=clip,
        normalizer=float(
            actor.loss_scale_factor or config.model.max_response_tokens or config.model.max_model_len or 1
        ),
    )


def reference_settings(config: Config) -> ActorSettings:
    """Return how a batch is split where the reference scores it; what its section leaves out is that of the actor."""
    ref, own = config.trainer.trainer_config.actor_rollout_ref.ref, actor_settings(config)
    by_tokens = ref.log_prob_use_dynamic_bsz
    if own.max_tokens is not None if by_tokens is None else by_tokens:
        limit = ref.log_prob_max_token_len_per_gpu or token_limit(config)
        return dataclasses.replace(own, max_tokens=limit, max_rows=None)
    size = ref.log_prob_micro_batch_size_per_gpu or ref.log_prob_micro_batch_size or _micro_rows(config)
    return dataclasses.replace(own, max_tokens=None, max_rows=2 * size if schema_of(config) == "dpo" else size)


def _micro_rows(config: Config) -> int:
    """Return the experiences of a micro-batch of the actor, where they are counted."""
    actor = actor_of(config)
    return actor.ppo_micro_batch_size_per_gpu or actor.ppo_micro_batch_size or DEFAULT_MICRO_ROWS


def schedule_of(config: Config, total_steps: int | None, *, start: int = 0) -> Schedule:
    """Return the learning rate of each training step; the first `start` steps leave the policy as it is.

    Raises:
        ConfigError: the rate follows the number of all steps, and `total_steps` is None.
    """
    optimizer = config.algorithm.optimizer
    return make_schedule(
        "algorithm.optimizer",
        total_steps,
        lr=optimizer.lr,
        kind=optimizer.warmup_style or optimizer.lr_scheduler_type,
        steps=optimizer.lr_warmup_steps,
        ratio=optimizer.lr_warmup_steps_ratio,
        min_lr_ratio=optimizer.min_lr_ratio,
        start=start,
    )


def loss_of(config: Config) -> LossFn:
    """Return the loss that the algorithm section describes; what it leaves out is the default of its type."""
    algorithm = config.algorithm
    defaults = ALGORITHM_TYPE.contents[algorithm.algorithm_type].args

    def build(registry: Registry, key: str, extra: dict[str, Any]) -> Any:
        chosen, args = vars(algorithm)[key], vars(algorithm)[f"{key}_args"] or {}
        name = chosen if chosen is not None else defaults.get(key) or "none"
        try:
            return registry.get(name)(**registry.arguments(name, extra | args))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"algorithm.{key}_args of {name}: {error}", code="E1302") from error

    entry = POLICY_LOSS_FN.contents.get(algorithm.policy_loss_fn or defaults.get("policy_loss_fn") or "")
    has_mode = entry is not None and "loss_agg_mode" in entry.args and algorithm.loss_agg_mode is not None
    mode = {"loss_agg_mode": algorithm.loss_agg_mode} if has_mode else {}
    policy_loss = build(POLICY_LOSS_FN, "policy_loss_fn", mode)
    return LossFn(
        policy_loss,
        build(KL_FN, "kl_loss_fn", {}),
        build(ENTROPY_LOSS_FN, "entropy_loss_fn", {}),
        loss_agg_mode=algorithm.loss_agg_mode or _shared_mode(policy_loss),
    )


def _shared_mode(policy_loss: PolicyLossFn) -> str:
    """Return the policy loss's own aggregation where KL and entropy have it too, else the mean over tokens."""
    own = policy_loss.loss_agg_mode
    return own if own in LOSS_AGG_MODES else TOKEN_MEAN
