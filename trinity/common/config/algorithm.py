"""Section `algorithm`: what is optimised, and the optimizer of the actor."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trinity.common.config.base import (
    GUIDE,
    OWN,
    TRINITY,
    Args,
    Count,
    Fraction,
    IdleWith,
    Int,
    NonNegative,
    Renamed,
    Section,
    key,
    only,
    section,
)
from trinity.common.config.rollout_correction import RolloutCorrectionConfig
from trinity.common.constants import LossAggMode

SchedulerType = Literal["constant", "linear", "cosine"]


class OptimizerConfig(Section):
    """Optimizer of the actor; overrides `trainer.trainer_config`."""

    lr: NonNegative = key(1e-6, "Peak learning rate, >= 0; above 0.1 is reported as unusual.", GUIDE)
    lr_warmup_steps: Annotated[Int, Field(ge=-1)] = key(
        -1, "Warm-up in training steps; -1: use lr_warmup_steps_ratio.", TRINITY
    )
    lr_warmup_steps_ratio: Fraction = key(0.0, "Warm-up as a share of all training steps, in [0, 1].", TRINITY)
    min_lr_ratio: Fraction = key(
        0.01,
        "Final learning rate of a cosine or linear schedule as a share of lr.",
        TRINITY,
        idle_with=(
            IdleWith("lr_scheduler_type", but=("cosine", "linear"), instead="write `lr_scheduler_type: cosine`"),
        ),
    )
    warmup_style: SchedulerType | None = key(
        None, "", GUIDE, renamed=Renamed("algorithm.optimizer.lr_scheduler_type", TRINITY, both="clash")
    )
    lr_scheduler_type: SchedulerType = key(
        "constant", "Schedule after the warm-up: constant, linear or cosine.", TRINITY
    )
    optimizer_type: Literal["adam", "adamw", "sgd"] = key("adam", "adam and adamw both mean AdamW; or sgd.", TRINITY)
    betas: tuple[Annotated[Fraction, Field(lt=1)], Annotated[Fraction, Field(lt=1)]] = key(
        (0.9, 0.999), "Decay rates of Adam's moments, each in [0, 1).", TRINITY
    )
    weight_decay: NonNegative = key(0.01, "Decoupled weight decay, >= 0.", TRINITY)
    clip_grad: NonNegative | None = key(
        None,
        "Other name of trainer.grad_clip (largest gradient norm); null: as there (1.0).",
        TRINITY,
        renamed=Renamed("trainer.grad_clip", both="clash", said="other"),
    )


class AlgorithmConfig(Section):
    """Algorithm type and its functions; absent keys default to the type's."""

    algorithm_type: str = key("grpo", "Algorithm: grpo, sft, ... (the catalogue lists all).", GUIDE)
    repeat_times: Count | None = key(
        None, "Rollouts per task, >= 1; null: the default of algorithm_type.", GUIDE, verl_names=("rollout_n",)
    )
    optimizer: OptimizerConfig = section(OptimizerConfig, "Optimizer of the actor.")
    sample_strategy: str | None = key(None, "How the trainer chooses experiences; null: of algorithm_type.", GUIDE)
    sample_strategy_args: Args | None = key(None, "Arguments of sample_strategy; merged with its defaults.", TRINITY)
    advantage_fn: str | None = key(None, "Advantage function; null: of algorithm_type.", GUIDE)
    advantage_fn_args: Args | None = key(None, "Arguments of advantage_fn; merged with its defaults.", TRINITY)
    kl_penalty_fn: str | None = key(None, "KL term inside the reward; null: of algorithm_type.", GUIDE)
    kl_penalty_fn_args: Args | None = key(None, "Arguments of kl_penalty_fn; merged with its defaults.", TRINITY)
    policy_loss_fn: str | None = key(None, "Policy loss; null: of algorithm_type.", TRINITY)
    policy_loss_fn_args: Args | None = key(None, "Arguments of policy_loss_fn; merged with its defaults.", TRINITY)
    kl_loss_fn: str | None = key(
        None, "KL term beside the policy loss; null: of algorithm_type.", GUIDE, verl_names=("use_kl_loss",)
    )
    kl_loss_fn_args: Args | None = key(None, "Arguments of kl_loss_fn; merged with its defaults.", TRINITY)
    entropy_loss_fn: str | None = key(None, "Entropy bonus; null: of algorithm_type.", GUIDE)
    entropy_loss_fn_args: Args | None = key(None, "Arguments of entropy_loss_fn; merged with its defaults.", TRINITY)
    loss_agg_mode: LossAggMode | None = key(
        None,
        "How token losses become one number; null: the policy loss's own default.",
        TRINITY,
        fallback="token-mean",
    )
    loss_agg_scope: Literal["mini_batch", "micro_batch"] = key(
        "mini_batch",
        "What losses are averaged over: the mini-batch; or each micro-batch, and then all micro-batches and "
        "workers, as in veRL until 0.6.",
        OWN,
    )
    enable_router_replay: bool = key(
        False, "Replay the expert routing of the rollout (mixture of experts).", TRINITY, support=only(False)
    )
    bypass_old_logprobs: bool = key(True, "Take the rollout's logprobs as old logprobs; false: recompute.", TRINITY)
    rollout_correction: RolloutCorrectionConfig | None = key(
        None, "Weights and rejection of rollouts that another policy sampled; null: none.", TRINITY
    )
