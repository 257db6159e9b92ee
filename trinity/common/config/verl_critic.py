"""veRL's critic section; most absent keys default to the policy's."""

from __future__ import annotations

from trinity.common.config.base import (
    GUIDE,
    LATER,
    VERL,
    Count,
    Facts,
    NonNegative,
    Renamed,
    Section,
    key,
    section,
)
from trinity.common.config.verl_base import (
    CheckpointContents,
    FsdpConfig,
    Strategy,
    VerlModelConfig,
    VerlOptimConfig,
)
from trinity.common.config.verl_megatron import MegatronEngineConfig
from trinity.common.config.verl_policy import ACTOR, SCHEDULE
from trinity.common.constants import LossAggMode

_CRITIC = "trainer.trainer_config.critic"
_HOST_AS_POLICY = {
    name: Facts(default_from=f"{ACTOR}.fsdp_config.{name}")
    for name in ("param_offload", "optimizer_offload", "offload_policy")
}
_AS_POLICY = {
    "lr": Facts(fallback=1e-5),
    "warmup_style": Facts(renamed=Renamed("lr_scheduler_type", both="clash")),
    **{name: Facts(default_from=f"algorithm.optimizer.{name}") for name in SCHEDULE},
    "total_training_steps": Facts(default_from=f"{ACTOR}.optim.total_training_steps"),
}


class CriticModelConfig(VerlModelConfig):
    """Loading and execution of the critic."""

    fsdp_config: FsdpConfig = section(FsdpConfig, "Sharding and data types.", at=_HOST_AS_POLICY)


_MODEL = "trainer.trainer_config.actor_rollout_ref.model"
_OF_CRITIC = {
    "path": Facts(
        default_from="model.critic_model_path", renamed=Renamed("model.critic_model_path", both="clash", said="veRL")
    ),
    "trust_remote_code": Facts(default_from="model.trust_remote_code"),
    **{
        name: Facts(default_from=f"{_MODEL}.{name}") for name in ("use_remove_padding", "enable_gradient_checkpointing")
    },
}


class CriticConfig(Section):
    """Training of the value function."""

    enable: bool | None = key(None, "Set from what the advantage function reads.", VERL, derived=True)
    strategy: Strategy | None = key(None, "Sharding.", GUIDE, default_from=f"{ACTOR}.strategy")
    optim: VerlOptimConfig = section(VerlOptimConfig, "Optimizer.", at=_AS_POLICY)
    model: CriticModelConfig = section(CriticModelConfig, "How the critic is loaded and run.", at=_OF_CRITIC)
    fsdp: FsdpConfig | None = key(None, "Newer place of model.fsdp_config.", VERL, at=_HOST_AS_POLICY)
    megatron: MegatronEngineConfig = section(MegatronEngineConfig, "Parallel groups of Megatron.", VERL)
    ppo_mini_batch_size: Count | None = key(None, "Always buffer.train_batch_size.", VERL, derived=True)
    ppo_micro_batch_size: Count | None = key(None, "", VERL, renamed=Renamed("ppo_micro_batch_size_per_gpu"))
    ppo_micro_batch_size_per_gpu: Count | None = key(None, "Experiences per forward pass.", GUIDE, fallback=8)
    forward_micro_batch_size: Count | None = key(None, "", VERL, renamed=Renamed("forward_micro_batch_size_per_gpu"))
    forward_micro_batch_size_per_gpu: Count | None = key(
        None,
        "Without gradient.",
        GUIDE,
        default_from=f"{_CRITIC}.ppo_micro_batch_size_per_gpu",
    )
    use_dynamic_bsz: bool | None = key(None, "Micro-batches by tokens.", GUIDE, default_from=f"{ACTOR}.use_dynamic_bsz")
    ppo_max_token_len_per_gpu: Count | None = key(None, "Tokens per forward pass; null: twice the actor's.", GUIDE)
    forward_max_token_len_per_gpu: Count | None = key(
        None,
        "Without gradient.",
        GUIDE,
        default_from=f"{_CRITIC}.ppo_max_token_len_per_gpu",
    )
    ulysses_sequence_parallel_size: Count | None = key(None, "Devices per sequence; null: 1.", GUIDE)
    ppo_epochs: Count | None = key(None, "Passes over a batch.", GUIDE, default_from=f"{ACTOR}.ppo_epochs")
    shuffle: bool | None = key(None, "Shuffle each pass.", GUIDE, default_from=f"{ACTOR}.shuffle")
    grad_clip: NonNegative | None = key(
        None,
        "Largest gradient norm; 0: no clipping.",
        GUIDE,
        default_from=f"{ACTOR}.grad_clip",
    )
    cliprange_value: NonNegative = key(0.5, "Clip range of the value loss.", GUIDE)
    loss_agg_mode: LossAggMode | None = key(None, "Aggregation.", VERL, default_from=f"{ACTOR}.loss_agg_mode")
    checkpoint: CheckpointContents = section(CheckpointContents, "What a checkpoint holds.", VERL)
    rollout_n: Count | None = key(None, "", VERL, derived=True, support=LATER, mirrors="algorithm.repeat_times")
