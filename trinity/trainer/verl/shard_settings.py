"""From a configuration to how each model is sharded."""

from __future__ import annotations

from trinity.common.config import Config
from trinity.common.config.verl_base import FsdpConfig
from trinity.trainer.verl.ranks import ShardOptions
from trinity.trainer.verl.settings import FLOATS


def actor_options(config: Config) -> ShardOptions:
    """Return how the policy is sharded."""
    return _options(config.trainer.trainer_config.actor_rollout_ref.actor.fsdp_config, config)


def reference_options(config: Config) -> ShardOptions:
    """Return how the reference is sharded."""
    return _options(config.trainer.trainer_config.actor_rollout_ref.ref.fsdp_config, config)


def critic_options(config: Config) -> ShardOptions:
    """Return how the value model is sharded: what the newer place of its section says, else the older one."""
    critic = config.trainer.trainer_config.critic
    return _options(critic.model.fsdp_config if critic.fsdp is None else critic.fsdp, config)


def _options(fsdp: FsdpConfig, config: Config) -> ShardOptions:
    policy, classes = fsdp.wrap_policy, fsdp.wrap_policy.transformer_layer_cls_to_wrap
    reduced = fsdp.mixed_precision.reduce_dtype if fsdp.mixed_precision else "fp32"
    return ShardOptions(
        fsdp_size=fsdp.fsdp_size,
        reshard_after_forward=fsdp.reshard_after_forward,
        forward_prefetch=fsdp.forward_prefetch,
        offload_policy=fsdp.offload_policy or config.trainer.offload_policy,
        reduce_dtype=FLOATS[reduced],
        layer_classes=(classes,) if isinstance(classes, str) else classes or None,
        min_num_params=policy.min_num_params,
        is_whole=policy.disable,
    )
