"""How each model is sharded, and which parts stay in host memory."""

from __future__ import annotations

from dataclasses import dataclass

from trinity.common.config import Config
from trinity.common.config.resolved import critic_fsdp
from trinity.common.config.verl_base import FsdpConfig
from trinity.trainer.verl.parallel.ranks import ShardOptions
from trinity.trainer.verl.settings import FLOATS


@dataclass(frozen=True)
class HostSwitches:
    """Which parts of a model are kept in host memory.

    Attributes:
        params: its parameters, between two steps.
        optimizer: the state of its optimizer, between two steps.
        in_steps: both, also during a step (`offload_policy`); computation brings them to the device layer by layer.
    """

    params: bool
    optimizer: bool
    in_steps: bool


def actor_switches(config: Config) -> HostSwitches:
    """Return which parts of the policy are kept in host memory."""
    return _switches(config.trainer.trainer_config.actor_rollout_ref.actor.fsdp_config)


def critic_switches(config: Config) -> HostSwitches:
    """Return which parts of the value model are kept in host memory."""
    return _switches(critic_fsdp(config))


def needs_group(config: Config) -> bool:
    """Return whether a single worker is sharded too, as `offload_policy` asks."""
    return actor_options(config).offload_policy or reference_options(config).offload_policy


def actor_options(config: Config) -> ShardOptions:
    """Return how the policy is sharded."""
    return _options(config.trainer.trainer_config.actor_rollout_ref.actor.fsdp_config)


def reference_options(config: Config) -> ShardOptions:
    """Return how the reference is sharded."""
    return _options(config.trainer.trainer_config.actor_rollout_ref.ref.fsdp_config)


def critic_options(config: Config) -> ShardOptions:
    """Return how the value model is sharded; `critic.fsdp` takes precedence."""
    return _options(critic_fsdp(config))


def _switches(fsdp: FsdpConfig) -> HostSwitches:
    return HostSwitches(fsdp.param_offload, fsdp.optimizer_offload, fsdp.offload_policy)


def _options(fsdp: FsdpConfig) -> ShardOptions:
    policy, classes = fsdp.wrap_policy, fsdp.wrap_policy.transformer_layer_cls_to_wrap
    reduced = fsdp.mixed_precision.reduce_dtype if fsdp.mixed_precision else "fp32"
    return ShardOptions(
        fsdp_size=fsdp.fsdp_size,
        reshard_after_forward=fsdp.reshard_after_forward,
        forward_prefetch=fsdp.forward_prefetch,
        offload_policy=fsdp.offload_policy,
        reduce_dtype=FLOATS[reduced],
        layer_classes=(classes,) if isinstance(classes, str) else classes or None,
        min_num_params=policy.min_num_params,
        is_whole=policy.disable,
    )
