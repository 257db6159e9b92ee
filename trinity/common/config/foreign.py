"""Names of keys that users of other frameworks know, and the keys here."""

from __future__ import annotations

from collections.abc import Mapping

from trinity.common.config.keys import ACTOR, KEYS, ROLLOUT_MODEL, TASKSET, Key, part_of, present
from trinity.common.config.renames import verl_name
from trinity.common.config.tree import Path

_MODEL = KEYS.trainer.trainer_config.actor_rollout_ref.model
_ADAPTER = present(KEYS.model.lora_configs)[0]
_CORRECTION = present(KEYS.algorithm.rollout_correction)
# Arguments of TRL (`GRPOConfig` and what it derives from, `ModelConfig`, `ScriptArguments`) under other names here.
TRL: Mapping[str, Key[object]] = {
    "adam_beta1": KEYS.algorithm.optimizer.betas,
    "adam_beta2": KEYS.algorithm.optimizer.betas,
    "beta": part_of(KEYS.algorithm.kl_loss_fn_args, "kl_coef"),
    "bf16": ACTOR.fsdp_config.dtype,
    "cliprange": part_of(KEYS.algorithm.policy_loss_fn_args, "clip_range"),
    "dataset_config": TASKSET.subset_name,
    "dataset_name": TASKSET.path,
    "dataset_train_split": TASKSET.split,
    "delta": part_of(KEYS.algorithm.policy_loss_fn_args, "clip_ratio_c"),
    "entropy_coef": part_of(KEYS.algorithm.entropy_loss_fn_args, "entropy_coef"),
    "epsilon": part_of(KEYS.algorithm.policy_loss_fn_args, "clip_range"),
    "epsilon_high": part_of(KEYS.algorithm.policy_loss_fn_args, "clip_range_high"),
    "eval_dataset": KEYS.buffer.explorer_input.eval_tasksets,
    "eval_on_start": KEYS.explorer.eval_on_startup,
    "eval_steps": KEYS.explorer.eval_interval,
    "fp16": ACTOR.fsdp_config.dtype,
    "generation_batch_size": KEYS.buffer.batch_size,
    "gradient_accumulation_steps": KEYS.trainer.max_token_len_per_gpu,
    "gradient_checkpointing": _MODEL.enable_gradient_checkpointing,
    "importance_sampling_level": KEYS.algorithm.policy_loss_fn,
    "learning_rate": KEYS.algorithm.optimizer.lr,
    "lora_alpha": _ADAPTER.lora_alpha,
    "lora_r": _ADAPTER.lora_rank,
    "lora_target_modules": _ADAPTER.target_modules,
    "loss_type": KEYS.algorithm.loss_agg_mode,
    "max_completion_length": KEYS.model.max_response_tokens,
    "max_grad_norm": KEYS.trainer.grad_clip,
    "max_length": KEYS.model.max_model_len,
    "max_seq_length": KEYS.model.max_model_len,
    "max_steps": KEYS.trainer.total_steps,
    "model_name_or_path": KEYS.model.model_path,
    "num_generations": KEYS.algorithm.repeat_times,
    "num_iterations": ACTOR.ppo_epochs,
    "num_ppo_epochs": ACTOR.ppo_epochs,
    "num_train_epochs": KEYS.buffer.total_epochs,
    "optim": KEYS.algorithm.optimizer.optimizer_type,
    "output_dir": KEYS.checkpoint_root_dir,
    "per_device_train_batch_size": KEYS.buffer.train_batch_size,
    "report_to": KEYS.monitor.monitor_type,
    "response_length": KEYS.model.max_response_tokens,
    "resume_from_checkpoint": KEYS.continue_from_checkpoint,
    "reward_funcs": KEYS.buffer.explorer_input.default_reward_fn_type,
    "run_name": KEYS.name,
    "sapo_temperature_neg": part_of(KEYS.algorithm.policy_loss_fn_args, "tau_neg"),
    "sapo_temperature_pos": part_of(KEYS.algorithm.policy_loss_fn_args, "tau_pos"),
    "save_steps": KEYS.trainer.save_interval,
    "save_total_limit": KEYS.trainer.max_checkpoints_to_keep,
    "scale_rewards": part_of(KEYS.algorithm.advantage_fn_args, "std_cal_level"),
    "shuffle_dataset": TASKSET.data_selector.selector_type,
    "train_dataset": TASKSET.path,
    "use_peft": KEYS.model.lora_configs,
    "use_vllm": ROLLOUT_MODEL.engine_type,
    "vllm_gpu_memory_utilization": ROLLOUT_MODEL.gpu_memory_utilization,
    "vllm_importance_sampling_clip_max": _CORRECTION.rollout_is_threshold,
    "vllm_importance_sampling_correction": _CORRECTION.rollout_is,
    "vllm_importance_sampling_mode": _CORRECTION.rollout_is,
    "vllm_max_model_length": KEYS.model.max_model_len,
    "vllm_tensor_parallel_size": ROLLOUT_MODEL.tensor_parallel_size,
    "warmup_ratio": KEYS.algorithm.optimizer.lr_warmup_steps_ratio,
    "warmup_steps": KEYS.algorithm.optimizer.lr_warmup_steps,
}


def known_elsewhere(path: Path) -> tuple[str, str] | None:
    """Return the framework that has a key of this name, and the key here."""
    verl = verl_name(path)
    if verl is not None:
        return "veRL", verl
    name = str(path[-1])
    is_ours = path[:2] == ("trainer", "trainer_config") or name not in TRL
    return None if is_ours else ("TRL", str(TRL[name]))
