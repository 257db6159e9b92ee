"""The tree `trainer.trainer_config`: detailed settings under veRL's names.

A value written here wins over the one of section `trainer` or `algorithm` that it refines; what is left out
is filled from there, so that a resolved configuration holds one value for each meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trinity.common.config.base import (
    GUIDE,
    LATER,
    VERL,
    Args,
    Count,
    Idle,
    Int,
    Natural,
    NonNegative,
    Renamed,
    Section,
    key,
    only,
    section,
)
from trinity.common.config.reward_model import RewardModelConfig
from trinity.common.config.verl_critic import CriticConfig
from trinity.common.config.verl_policy import ActorRolloutRefConfig


def _no_path(value: Any) -> Any:
    return None if value in ("", "None", False) else value


Limit = Annotated[Int, Field(ge=-1)]


class VerlTrainerConfig(Section):
    """veRL's loop; `trainer`, `monitor` and the top level replace most of it."""

    balance_batch: bool | None = key(None, "Equal work for all workers.", GUIDE, mirrors="trainer.balance_batch")
    total_epochs: Count | None = key(None, "", VERL, set_from="buffer.total_epochs")
    total_training_steps: Limit | None = key(None, "", GUIDE, set_from="trainer.total_steps")
    project_name: str | None = key(None, "", VERL, set_from="project")
    experiment_name: str | None = key(None, "", VERL, set_from="name")
    logger: str | tuple[str, ...] | None = key(None, "", VERL, set_from="monitor.monitor_type")
    nnodes: Count | None = key(None, "", VERL, set_from="cluster.node_num")
    n_gpus_per_node: Natural | None = key(None, "", VERL, set_from="cluster.gpu_per_node")
    save_freq: Limit | None = key(None, "", VERL, set_from="trainer.save_interval")
    test_freq: Limit | None = key(None, "", VERL, set_from="explorer.eval_interval")
    val_before_train: bool | None = key(None, "", VERL, set_from="explorer.eval_on_startup")
    default_local_dir: str | None = key(None, "", VERL, set_from="checkpoint_root_dir")
    resume_mode: Literal["disable", "auto", "resume_path"] = key("auto", "What a run continues from.", GUIDE)
    resume_from_path: Annotated[str | None, BeforeValidator(_no_path)] = key(
        None, "Checkpoint of resume_mode resume_path.", GUIDE
    )
    critic_warmup: Natural | None = key(
        None, "Steps that train only the critic.", GUIDE, mirrors="trainer.critic_warmup"
    )
    default_hdfs_dir: str | None = key(None, "", GUIDE, set_from="trainer.checkpoint_upload_dir")
    remove_previous_ckpt_in_save: bool = key(
        False,
        "Keep only the newest checkpoints.",
        GUIDE,
        renamed=Renamed("trainer.max_checkpoints_to_keep", "veRL 0.3"),
    )
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
    log_val_generations: Natural = key(0, "Evaluation rollouts that are logged.", VERL, support=LATER)
    rollout_data_dir: str | None = key(None, "Folder of dumped rollouts.", VERL, support=LATER)
    validation_data_dir: str | None = key(None, "Folder of dumped evaluation rollouts.", VERL, support=LATER)


class KlControlConfig(Section):
    """Controller of the KL coefficient."""

    type: Literal["fixed", "adaptive"] = key("fixed", "fixed or adaptive.", VERL, support=LATER)
    kl_coef: NonNegative = key(0.001, "Initial coefficient.", VERL, set_from="algorithm.kl_penalty_fn_args.kl_coef")
    horizon: Count = key(
        10000,
        "Horizon of the adaptive controller in experiences.",
        VERL,
        set_from="algorithm.kl_penalty_fn_args.horizon",
    )
    target_kl: NonNegative = key(
        0.1, "Target of the adaptive controller.", VERL, set_from="algorithm.kl_penalty_fn_args.target_kl"
    )


class VerlAlgorithmConfig(Section):
    """veRL's algorithm keys; section `algorithm` replaces them."""

    gamma: NonNegative | None = key(None, "Discount.", VERL, set_from="algorithm.advantage_fn_args.gamma")
    lam: NonNegative | None = key(None, "Decay of GAE.", VERL, set_from="algorithm.advantage_fn_args.lam")
    adv_estimator: str | None = key(None, "", VERL, set_from="algorithm.advantage_fn")
    norm_adv_by_std_in_grpo: bool | None = key(None, "Divide by the group's deviation; null: yes.", VERL, support=LATER)
    use_kl_in_reward: bool | None = key(None, "", VERL, set_from="algorithm.kl_penalty_fn")
    kl_penalty: str | None = key(None, "Estimator of the KL penalty.", VERL, set_from="algorithm.kl_penalty_fn")
    kl_ctrl: KlControlConfig | None = key(None, "Controller of the KL coefficient.", VERL)
    use_pf_ppo: bool = key(False, "Preference-weighted resampling.", VERL, support=LATER)
    pf_ppo: Args | None = key(None, "Arguments of use_pf_ppo.", VERL, support=LATER)
    filter_groups: Args | None = key(None, "Dynamic sampling.", VERL, support=LATER)
    rollout_correction: Args | None = key(
        None, "As algorithm.rollout_correction.", VERL, support=only(instead="write `algorithm.rollout_correction`")
    )


class VerlDataConfig(Section):
    """veRL's data keys that a trainer reads."""

    train_batch_size: Count | None = key(None, "", VERL, set_from="buffer.batch_size")
    max_prompt_length: Count | None = key(None, "", VERL, set_from="model.max_prompt_tokens")
    max_response_length: Count | None = key(None, "", VERL, set_from="model.max_response_tokens")


class VerlConfig(Section):
    """Root of the veRL tree."""

    actor_rollout_ref: ActorRolloutRefConfig = section(
        ActorRolloutRefConfig, "Policy and reference.", verl_names=("actor_rollout_ref",)
    )
    critic: CriticConfig = section(CriticConfig, "Value function.", verl_names=("critic",))
    reward_model: RewardModelConfig = section(RewardModelConfig, "A model that scores rollouts.")
    trainer: VerlTrainerConfig = section(VerlTrainerConfig, "Training loop.")
    data: VerlDataConfig = section(VerlDataConfig, "Data keys of a trainer.", VERL)
    algorithm: VerlAlgorithmConfig = section(VerlAlgorithmConfig, "Algorithm keys.", VERL)
