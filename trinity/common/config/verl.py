"""The tree `trainer.trainer_config`: detailed settings under veRL's names.

A value written here wins over the one of section `trainer` or `algorithm` that it refines; what is left out
is filled from there, so that a resolved configuration holds one value for each meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity.common.config.algorithm import LossAggMode
from trinity.common.config.base import (
    GUIDE,
    LATER,
    VERL,
    Args,
    Count,
    Facts,
    Idle,
    Int,
    Natural,
    NonNegative,
    Section,
    key,
    only,
    refused,
    section,
)
from trinity.common.config.reward_model import RewardModelConfig
from trinity.common.config.verl_base import (
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


class ActorConfig(Section):
    """Training of the policy."""

    strategy: Strategy | None = key(None, "Sharding; null: trainer.trainer_strategy.", GUIDE)
    ppo_mini_batch_size: Count | None = key(
        None, "Rollouts per optimizer step: always buffer.train_batch_size.", VERL, derived=True
    )
    ppo_micro_batch_size: Count | None = key(None, "Older form of ppo_micro_batch_size_per_gpu.", GUIDE)
    ppo_micro_batch_size_per_gpu: Count | None = key(
        None, "Experiences per forward pass if use_dynamic_bsz is false; null: 4.", GUIDE
    )
    use_dynamic_bsz: bool | None = key(None, "Micro-batches by tokens; null: trainer.use_dynamic_bsz.", GUIDE)
    ppo_max_token_len_per_gpu: Count | None = key(
        None, "Tokens per forward pass if use_dynamic_bsz is true; null: trainer.max_token_len_per_gpu.", GUIDE
    )
    grad_clip: NonNegative | None = key(None, "Largest gradient norm; null: trainer.grad_clip.", GUIDE)
    ppo_epochs: Count = key(1, "Passes over a batch.", GUIDE)
    shuffle: bool = key(False, "Shuffle the experiences of each pass.", GUIDE)
    data_loader_seed: Int | None = key(None, "Seed of the shuffle; null: seed.", VERL)
    ulysses_sequence_parallel_size: Count | None = key(None, "Devices per sequence; null: of trainer.", GUIDE)
    entropy_from_logits_with_chunking: bool = key(
        False, "Accepted: logits and entropy are always computed in pieces.", GUIDE
    )
    entropy_checkpointing: bool = key(False, "Accepted: the entropy is always recomputed in the backward pass.", GUIDE)
    checkpoint: CheckpointContents = section(CheckpointContents, "What a checkpoint holds.")
    optim: VerlOptimConfig = section(VerlOptimConfig, "Optimizer.")
    fsdp_config: FsdpConfig = section(
        FsdpConfig, "Sharding and number types.", at={"grad_offload": Facts(idle=GRADIENTS_KEPT)}
    )
    megatron: MegatronEngineConfig = section(
        MegatronEngineConfig, "Parallel groups of Megatron.", VERL, at={"grad_offload": Facts(idle=GRADIENTS_KEPT)}
    )
    use_torch_compile: bool | None = key(None, "Compile the entropy function; null: no.", VERL, support=LATER)
    clip_ratio: NonNegative | None = key(None, "Clip range; null: of algorithm.policy_loss_fn_args.", VERL)
    clip_ratio_low: NonNegative | None = key(None, "Lower clip range; null: clip_ratio.", VERL)
    clip_ratio_high: NonNegative | None = key(None, "Upper clip range; null: clip_ratio.", VERL)
    clip_ratio_c: NonNegative | None = key(None, "Bound of the loss for negative advantages.", VERL)
    entropy_coeff: NonNegative | None = key(None, "Weight of the entropy; null: of algorithm.", VERL)
    use_kl_loss: bool | None = key(None, "Set from algorithm.kl_loss_fn.", VERL, derived=True, support=LATER)
    kl_loss_coef: NonNegative | None = key(None, "Weight of the KL term; null: of algorithm.", VERL)
    kl_loss_type: str | None = key(None, "Estimator of the KL term; null: of algorithm.", VERL)
    loss_agg_mode: LossAggMode | None = key(None, "Aggregation; null: algorithm.loss_agg_mode.", VERL, support=LATER)
    loss_scale_factor: NonNegative | None = key(None, "Divisor of seq-mean-token-sum-norm.", VERL, support=LATER)
    policy_loss: Args | None = key(None, "Policy loss; null: of algorithm.", VERL, support=LATER)
    tau_pos: NonNegative | None = key(None, "Gate of positive advantages (sapo).", VERL, support=LATER)
    tau_neg: NonNegative | None = key(None, "Gate of negative advantages (sapo).", VERL, support=LATER)
    use_prefix_grouper: bool = key(False, "Share the computation of equal prompts.", VERL, support=LATER)
    freeze_vision_tower: bool = key(False, "Do not train the vision model.", VERL, support=LATER)
    use_rollout_log_probs: bool | None = key(
        None, "Set from algorithm.bypass_old_logprobs.", VERL, derived=True, support=LATER
    )
    calculate_entropy: bool | None = key(
        None, "Compute the entropy for the metric; null: as the entropy loss.", VERL, support=LATER
    )
    calculate_sum_pi_squared: bool = key(False, "Compute the sum of squared probabilities.", VERL, support=LATER)
    fix_actor_microbatch_loss_scale: bool = key(False, "Scale by tokens; this trainer always does.", VERL)


class RefConfig(Section):
    """Log-probabilities of the frozen reference."""

    strategy: Strategy | None = key(None, "Sharding; null: of the actor.", VERL)
    model: Args | None = key(None, "Another reference model; null: the initial policy.", VERL, support=LATER)
    fsdp_config: FsdpConfig = section(FsdpConfig, "Sharding and number types.", at=SCORES_ONLY)
    megatron: MegatronEngineConfig = section(
        MegatronEngineConfig,
        "Parallel groups of Megatron.",
        VERL,
        at={"optimizer_offload": Facts(undone(False, why="a reference has no optimizer"))},
    )
    log_prob_micro_batch_size: Count | None = key(None, "Older form of the next key.", GUIDE)
    log_prob_micro_batch_size_per_gpu: Count | None = key(None, "Experiences per forward pass; null: actor's.", GUIDE)
    log_prob_use_dynamic_bsz: bool | None = key(None, "Micro-batches by tokens; null: as the actor.", GUIDE)
    log_prob_max_token_len_per_gpu: Count | None = key(None, "Tokens per forward pass; null: as the actor.", GUIDE)
    ulysses_sequence_parallel_size: Count | None = key(None, "Devices per sequence; null: as the actor.", GUIDE)
    entropy_from_logits_with_chunking: bool | None = key(None, "The reference computes no entropy.", GUIDE)
    entropy_checkpointing: bool | None = key(None, "The reference computes no entropy.", GUIDE)


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
    "path": Facts(LATER),
    "use_remove_padding": Facts(idle=PADDED),
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


class CriticModelConfig(VerlModelConfig):
    """How the critic is loaded and run."""

    fsdp_config: FsdpConfig = section(FsdpConfig, "Sharding and number types.")


class CriticConfig(Section):
    """Training of the value function."""

    enable: bool | None = key(None, "Set from what the advantage function reads.", VERL, derived=True)
    strategy: Strategy | None = key(None, "Sharding; null: trainer.trainer_strategy.", GUIDE)
    optim: VerlOptimConfig = section(VerlOptimConfig, "Optimizer; learning rate 1e-5.")
    model: CriticModelConfig = section(CriticModelConfig, "How the critic is loaded and run.")
    fsdp: FsdpConfig | None = key(None, "Newer place of model.fsdp_config.", VERL)
    megatron: MegatronEngineConfig = section(MegatronEngineConfig, "Parallel groups of Megatron.", VERL)
    ppo_mini_batch_size: Count | None = key(None, "Always buffer.train_batch_size.", VERL, derived=True)
    ppo_micro_batch_size: Count | None = key(None, "Older form of ppo_micro_batch_size_per_gpu.", VERL)
    ppo_micro_batch_size_per_gpu: Count | None = key(None, "Experiences per forward pass; null: 8.", GUIDE)
    forward_micro_batch_size: Count | None = key(None, "Older form of forward_micro_batch_size_per_gpu.", VERL)
    forward_micro_batch_size_per_gpu: Count | None = key(None, "Without gradient; null: as with.", GUIDE)
    use_dynamic_bsz: bool | None = key(None, "Micro-batches by tokens; null: as the actor.", GUIDE)
    ppo_max_token_len_per_gpu: Count | None = key(None, "Tokens per forward pass; null: twice the actor's.", GUIDE)
    forward_max_token_len_per_gpu: Count | None = key(None, "Without gradient; null: as with.", GUIDE)
    ulysses_sequence_parallel_size: Count | None = key(None, "Devices per sequence; null: 1.", GUIDE)
    ppo_epochs: Count | None = key(None, "Passes over a batch; null: as the actor.", GUIDE)
    shuffle: bool | None = key(None, "Shuffle each pass; null: as the actor.", GUIDE)
    grad_clip: NonNegative | None = key(
        None, "Largest gradient norm; 0: no clipping; null: as the actor (the guide writes 1.0).", GUIDE
    )
    cliprange_value: NonNegative = key(0.5, "Clip range of the value loss.", GUIDE)
    loss_agg_mode: LossAggMode | None = key(None, "Aggregation; null: as the actor.", VERL)
    checkpoint: CheckpointContents = section(CheckpointContents, "What a checkpoint holds.", VERL)
    rollout_n: Count | None = key(None, "Set from algorithm.repeat_times.", VERL, derived=True, support=LATER)


def _no_path(value: Any) -> Any:
    return None if value in ("", "None", False) else value


Limit = Annotated[Int, Field(ge=-1)]


class VerlTrainerConfig(Section):
    """veRL's training loop; sections `trainer`, `monitor` and the top level replace most of it."""

    balance_batch: bool | None = key(None, "Equal work for all workers; null: trainer.balance_batch.", GUIDE)
    total_epochs: Count | None = key(None, "Set from buffer.total_epochs.", VERL, derived=True)
    total_training_steps: Limit | None = key(None, "Set from trainer.total_steps.", GUIDE, derived=True)
    project_name: str | None = key(None, "Set from project.", VERL, derived=True)
    experiment_name: str | None = key(None, "Set from name.", VERL, derived=True)
    logger: str | tuple[str, ...] | None = key(None, "Set from section monitor.", VERL, derived=True)
    nnodes: Count | None = key(None, "Set from section cluster.", VERL, derived=True)
    n_gpus_per_node: Natural | None = key(None, "Set from section cluster.", VERL, derived=True)
    save_freq: Limit | None = key(None, "Set from trainer.save_interval.", VERL, derived=True)
    test_freq: Limit | None = key(None, "Set from explorer.eval_interval.", VERL, derived=True)
    val_before_train: bool | None = key(None, "Set from explorer.eval_on_startup.", VERL, derived=True)
    default_local_dir: str | None = key(None, "Set from checkpoint_root_dir.", VERL, derived=True)
    resume_mode: Literal["disable", "auto", "resume_path"] = key("auto", "What a run continues from.", GUIDE)
    resume_from_path: Annotated[str | None, BeforeValidator(_no_path)] = key(
        None, "Checkpoint of resume_mode resume_path.", GUIDE
    )
    critic_warmup: Natural | None = key(None, "Steps that train only the critic; null: of trainer.", GUIDE)
    default_hdfs_dir: str | None = key(
        None,
        "HDFS folder of checkpoints.",
        GUIDE,
        support=refused(
            why="checkpoints are written to a folder, not to HDFS",
            instead="remove it, and write `checkpoint_root_dir` with a folder that is mounted from there",
        ),
    )
    remove_previous_ckpt_in_save: bool = key(False, "Keep only the newest checkpoints.", GUIDE)
    del_local_ckpt_after_load: bool = key(
        False,
        "Delete local copies of remote checkpoints.",
        GUIDE,
        idle=Idle(
            True,
            "it is about the local copy of a checkpoint on HDFS; checkpoints are read where they are written, so that "
            "there is no copy, and none is deleted because it was read",
        ),
    )
    max_actor_ckpt_to_keep: Count | None = key(None, "Actor checkpoints kept; null: of trainer.", GUIDE)
    max_critic_ckpt_to_keep: Count | None = key(None, "Critic checkpoints kept; null: of trainer.", GUIDE)
    log_val_generations: Natural = key(0, "Evaluation samples that are logged.", VERL, support=LATER)
    rollout_data_dir: str | None = key(None, "Folder of dumped rollouts.", VERL, support=LATER)
    validation_data_dir: str | None = key(None, "Folder of dumped evaluation samples.", VERL, support=LATER)


class KlControlConfig(Section):
    """Controller of the KL coefficient."""

    type: Literal["fixed", "adaptive"] = key("fixed", "fixed or adaptive.", VERL, support=LATER)
    kl_coef: NonNegative = key(0.001, "Initial coefficient.", VERL)
    horizon: Count = key(10000, "Horizon of the adaptive controller in experiences.", VERL)
    target_kl: NonNegative = key(0.1, "Target of the adaptive controller.", VERL)


class VerlAlgorithmConfig(Section):
    """veRL's algorithm keys; section `algorithm` replaces them."""

    gamma: NonNegative | None = key(None, "Discount; null: of algorithm.advantage_fn_args.", VERL)
    lam: NonNegative | None = key(None, "Decay of GAE; null: of algorithm.advantage_fn_args.", VERL)
    adv_estimator: str | None = key(None, "Set from algorithm.advantage_fn.", VERL, derived=True)
    norm_adv_by_std_in_grpo: bool | None = key(None, "Divide by the group's deviation; null: yes.", VERL, support=LATER)
    use_kl_in_reward: bool | None = key(None, "Set from algorithm.kl_penalty_fn.", VERL, derived=True)
    kl_penalty: str | None = key(None, "Estimator of the KL penalty.", VERL)
    kl_ctrl: KlControlConfig | None = key(None, "Controller of the KL coefficient.", VERL)
    use_pf_ppo: bool = key(False, "Preference-weighted resampling.", VERL, support=LATER)
    pf_ppo: Args | None = key(None, "Arguments of use_pf_ppo.", VERL, support=LATER)
    filter_groups: Args | None = key(None, "Dynamic sampling.", VERL, support=LATER)
    rollout_correction: Args | None = key(
        None, "As algorithm.rollout_correction.", VERL, support=only(instead="write `algorithm.rollout_correction`")
    )


class VerlDataConfig(Section):
    """veRL's data keys that a trainer reads."""

    train_batch_size: Count | None = key(None, "Set from buffer.batch_size.", VERL, derived=True)
    max_prompt_length: Count | None = key(None, "Set from model.max_prompt_tokens.", VERL, derived=True)
    max_response_length: Count | None = key(None, "Set from model.max_response_tokens.", VERL, derived=True)


class VerlConfig(Section):
    """Root of the veRL tree."""

    actor_rollout_ref: ActorRolloutRefConfig = section(ActorRolloutRefConfig, "Policy and reference.")
    critic: CriticConfig = section(CriticConfig, "Value function.")
    reward_model: RewardModelConfig = section(RewardModelConfig, "A model that scores rollouts.")
    trainer: VerlTrainerConfig = section(VerlTrainerConfig, "Training loop.")
    data: VerlDataConfig = section(VerlDataConfig, "Data keys of a trainer.", VERL)
    algorithm: VerlAlgorithmConfig = section(VerlAlgorithmConfig, "Algorithm keys.", VERL)
