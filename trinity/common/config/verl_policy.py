"""veRL's sections of policy and reference."""

from __future__ import annotations

from trinity.common.config.base import (
    GUIDE,
    LATER,
    VERL,
    Args,
    Count,
    Facts,
    Int,
    NonNegative,
    Renamed,
    Section,
    key,
    only,
    refused,
    section,
)
from trinity.common.config.verl_base import (
    COMPILED,
    GRADIENTS_KEPT,
    PADDED,
    SCORES_ONLY,
    CheckpointContents,
    FsdpConfig,
    Strategy,
    VerlModelConfig,
    VerlOptimConfig,
)
from trinity.common.config.verl_megatron import MegatronEngineConfig, undone
from trinity.common.constants import LossAggMode

ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
_HOST = {
    **{name: Facts(mirrors=f"trainer.{name}") for name in ("param_offload", "optimizer_offload", "offload_policy")},
    "grad_offload": Facts(idle=GRADIENTS_KEPT, mirrors="trainer.grad_offload"),
}
SCHEDULE = ("lr_warmup_steps", "lr_warmup_steps_ratio", "min_lr_ratio", "lr_scheduler_type", "weight_decay", "betas")
_OF_ALGORITHM = {name: Facts(mirrors=f"algorithm.optimizer.{name}") for name in ("lr", *SCHEDULE)}


class ActorConfig(Section):
    """Training of the policy."""

    strategy: Strategy | None = key(None, "Sharding.", GUIDE, mirrors="trainer.trainer_strategy")
    ppo_mini_batch_size: Count | None = key(
        None, "Rollouts per training step: always buffer.train_batch_size.", VERL, derived=True
    )
    ppo_micro_batch_size: Count | None = key(
        None, "", GUIDE, renamed=Renamed("ppo_micro_batch_size_per_gpu", "veRL 0.2")
    )
    ppo_micro_batch_size_per_gpu: Count | None = key(
        None,
        "Experiences per forward pass if use_dynamic_bsz is false.",
        GUIDE,
        fallback=4,
        verl_names=("ppo_micro_batch_size",),
    )
    use_dynamic_bsz: bool | None = key(None, "Micro-batches by tokens.", GUIDE, mirrors="trainer.use_dynamic_bsz")
    ppo_max_token_len_per_gpu: Count | None = key(
        None,
        "Tokens per forward pass if use_dynamic_bsz is true.",
        GUIDE,
        mirrors="trainer.max_token_len_per_gpu",
    )
    grad_clip: NonNegative | None = key(None, "Largest gradient norm.", GUIDE, mirrors="trainer.grad_clip")
    ppo_epochs: Count = key(1, "Passes over a batch.", GUIDE)
    shuffle: bool = key(False, "Shuffle the experiences of each pass.", GUIDE)
    data_loader_seed: Int | None = key(None, "Seed of the shuffle.", VERL, default_from="seed")
    ulysses_sequence_parallel_size: Count | None = key(
        None, "Devices per sequence.", GUIDE, mirrors="trainer.ulysses_sequence_parallel_size"
    )
    entropy_from_logits_with_chunking: bool = key(
        False, "Accepted: logits and entropy are always computed in pieces.", GUIDE
    )
    entropy_checkpointing: bool = key(False, "Accepted: the entropy is always recomputed in the backward pass.", GUIDE)
    checkpoint: CheckpointContents = section(CheckpointContents, "What a checkpoint holds.")
    optim: VerlOptimConfig = section(VerlOptimConfig, "Optimizer.", at=_OF_ALGORITHM)
    fsdp_config: FsdpConfig = section(FsdpConfig, "Sharding and data types.", at=_HOST)
    megatron: MegatronEngineConfig = section(
        MegatronEngineConfig, "Parallel groups of Megatron.", VERL, at={"grad_offload": Facts(idle=GRADIENTS_KEPT)}
    )
    use_torch_compile: bool | None = key(None, "Compile the entropy function; it never is.", VERL, idle=COMPILED)
    clip_ratio: NonNegative | None = key(
        None,
        "Clip range.",
        VERL,
        set_from="algorithm.policy_loss_fn_args.clip_range",
    )
    clip_ratio_low: NonNegative | None = key(
        None, "Lower clip range.", VERL, set_from="algorithm.policy_loss_fn_args.clip_range_low"
    )
    clip_ratio_high: NonNegative | None = key(
        None, "Upper clip range.", VERL, set_from="algorithm.policy_loss_fn_args.clip_range_high"
    )
    clip_ratio_c: NonNegative | None = key(
        None, "Bound of the loss for negative advantages.", VERL, set_from="algorithm.policy_loss_fn_args.clip_ratio_c"
    )
    entropy_coeff: NonNegative | None = key(
        None, "Weight of the entropy.", VERL, set_from="algorithm.entropy_loss_fn_args.entropy_coef"
    )
    use_kl_loss: bool | None = key(
        None,
        "Whether the loss has a KL term.",
        VERL,
        derived=True,
        support=LATER,
        default_from="algorithm.kl_loss_fn",
        unless="none",
    )
    kl_loss_coef: NonNegative | None = key(
        None,
        "Weight of the KL term.",
        VERL,
        set_from="algorithm.kl_loss_fn_args.kl_coef",
        verl_names=("kl_coef",),
    )
    kl_loss_type: str | None = key(None, "Estimator of the KL term.", VERL, set_from="algorithm.kl_loss_fn")
    loss_agg_mode: LossAggMode | None = key(
        None, "Aggregation.", VERL, support=LATER, default_from="algorithm.loss_agg_mode"
    )
    loss_scale_factor: NonNegative | None = key(None, "Divisor of seq-mean-token-sum-norm.", VERL, support=LATER)
    policy_loss: Args | None = key(None, "Policy loss; null: of algorithm.", VERL, support=LATER)
    tau_pos: NonNegative | None = key(None, "Gate of positive advantages (sapo).", VERL, support=LATER)
    tau_neg: NonNegative | None = key(None, "Gate of negative advantages (sapo).", VERL, support=LATER)
    use_prefix_grouper: bool = key(False, "Share the computation of equal prompts.", VERL, support=LATER)
    freeze_vision_tower: bool = key(False, "Do not train the vision model.", VERL)
    use_rollout_log_probs: bool | None = key(
        None,
        "",
        VERL,
        derived=True,
        support=LATER,
        default_from="algorithm.bypass_old_logprobs",
    )
    calculate_entropy: bool | None = key(
        None, "Compute the entropy for the metric; null: as the entropy loss.", VERL, support=LATER
    )
    calculate_sum_pi_squared: bool = key(False, "Compute the sum of squared probabilities.", VERL, support=LATER)
    sum_pi_squared_checkpointing: bool = key(False, "Recompute that sum in pieces.", VERL, support=LATER)
    fix_actor_microbatch_loss_scale: bool = key(False, "Scale by tokens; this trainer always does.", VERL)


class RefConfig(Section):
    """Log-probabilities of the frozen reference."""

    strategy: Strategy | None = key(None, "Sharding.", VERL, default_from=f"{ACTOR}.strategy")
    model: Args | None = key(None, "Another reference model; null: the initial policy.", VERL, support=LATER)
    fsdp_config: FsdpConfig = section(
        FsdpConfig,
        "Sharding and data types.",
        at=SCORES_ONLY | {"offload_policy": Facts(default_from="trainer.offload_policy")},
    )
    megatron: MegatronEngineConfig = section(
        MegatronEngineConfig,
        "Parallel groups of Megatron.",
        VERL,
        at={"optimizer_offload": Facts(undone(False, why="a reference has no optimizer"))},
    )
    log_prob_micro_batch_size: Count | None = key(
        None, "", GUIDE, renamed=Renamed("log_prob_micro_batch_size_per_gpu", "veRL 0.2")
    )
    log_prob_micro_batch_size_per_gpu: Count | None = key(
        None,
        "Experiences per forward pass.",
        GUIDE,
        default_from=f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    )
    log_prob_use_dynamic_bsz: bool | None = key(
        None, "Micro-batches by tokens.", GUIDE, default_from=f"{ACTOR}.use_dynamic_bsz"
    )
    log_prob_max_token_len_per_gpu: Count | None = key(
        None, "Tokens per forward pass.", GUIDE, default_from=f"{ACTOR}.ppo_max_token_len_per_gpu"
    )
    ulysses_sequence_parallel_size: Count | None = key(
        None,
        "Devices per sequence.",
        GUIDE,
        default_from=f"{ACTOR}.ulysses_sequence_parallel_size",
    )
    entropy_from_logits_with_chunking: bool | None = key(
        None, "The reference computes no entropy.", GUIDE, default_from=f"{ACTOR}.entropy_from_logits_with_chunking"
    )
    entropy_checkpointing: bool | None = key(
        None, "The reference computes no entropy.", GUIDE, default_from=f"{ACTOR}.entropy_checkpointing"
    )


class RolloutConfig(Section):
    """veRL's rollout keys; the explorer has its own."""

    temperature: NonNegative | None = key(None, "Set from the taskset.", VERL, derived=True, support=LATER)
    n: Count | None = key(None, "Set from algorithm.repeat_times.", VERL, derived=True, support=LATER)
    log_prob_micro_batch_size_per_gpu: Count | None = key(
        None, "Experiences per pass for old logprobs.", VERL, support=LATER
    )
    log_prob_use_dynamic_bsz: bool | None = key(None, "Micro-batches by tokens.", VERL, support=LATER)
    log_prob_max_token_len_per_gpu: Count | None = key(None, "Tokens per pass for old logprobs.", VERL, support=LATER)


_ADAPTER = only(instead="write `model.lora_configs`")
_OF_POLICY = {
    "path": Facts(LATER, default_from="model.model_path"),
    "trust_remote_code": Facts(default_from="model.trust_remote_code"),
    "use_remove_padding": Facts(idle=PADDED, mirrors="trainer.use_remove_padding"),
    **{name: Facts(_ADAPTER) for name in ("lora_rank", "lora_alpha", "lora_adapter_path")},
}


class ActorRolloutRefConfig(Section):
    """Policy and reference."""

    hybrid_engine: bool = key(
        True,
        "Policy and reference share their devices.",
        GUIDE,
        support=refused(
            why="policy and reference always share their devices; which devices explorer and trainer have is not said "
            "here",
            instead="remove it, and write `cluster.trainer_gpu_num`, or `mode: explore` and `mode: train`, to set them "
            "apart",
        ),
    )
    model: VerlModelConfig = section(VerlModelConfig, "How the model is loaded and run.", at=_OF_POLICY)
    actor: ActorConfig = section(ActorConfig, "Training of the policy.")
    ref: RefConfig = section(RefConfig, "Log-probabilities of the reference.")
    rollout: RolloutConfig = section(RolloutConfig, "veRL's rollout keys.", VERL)
