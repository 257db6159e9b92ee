"""Names of keys that users of other frameworks know, and the keys here."""

from __future__ import annotations

from collections.abc import Mapping

from trinity.common.config.keys import ACTOR, KEYS, ROLLOUT_MODEL, TASKSET, Key, part_of
from trinity.common.config.renames import verl_name
from trinity.common.config.tree import Path

_MODEL = KEYS.trainer.trainer_config.actor_rollout_ref.model
# Arguments of TRL's trainers (`GRPOConfig` and what it derives from) under other names here.
TRL: Mapping[str, Key[object]] = {
    "adam_beta1": KEYS.algorithm.optimizer.betas,
    "adam_beta2": KEYS.algorithm.optimizer.betas,
    "beta": part_of(KEYS.algorithm.kl_loss_fn_args, "kl_coef"),
    "bf16": ACTOR.fsdp_config.dtype,
    "dataset_name": TASKSET.path,
    "epsilon": part_of(KEYS.algorithm.policy_loss_fn_args, "clip_range"),
    "epsilon_high": part_of(KEYS.algorithm.policy_loss_fn_args, "clip_range_high"),
    "eval_steps": KEYS.explorer.eval_interval,
    "gradient_accumulation_steps": KEYS.trainer.max_token_len_per_gpu,
    "gradient_checkpointing": _MODEL.enable_gradient_checkpointing,
    "learning_rate": KEYS.algorithm.optimizer.lr,
    "max_completion_length": KEYS.model.max_response_tokens,
    "max_grad_norm": KEYS.trainer.grad_clip,
    "max_steps": KEYS.trainer.total_steps,
    "model_name_or_path": KEYS.model.model_path,
    "num_generations": KEYS.algorithm.repeat_times,
    "num_iterations": ACTOR.ppo_epochs,
    "num_train_epochs": KEYS.buffer.total_epochs,
    "output_dir": KEYS.checkpoint_root_dir,
    "per_device_train_batch_size": KEYS.buffer.train_batch_size,
    "report_to": KEYS.monitor.monitor_type,
    "reward_funcs": KEYS.buffer.explorer_input.default_reward_fn_type,
    "run_name": KEYS.name,
    "save_steps": KEYS.trainer.save_interval,
    "save_total_limit": KEYS.trainer.max_checkpoints_to_keep,
    "use_vllm": ROLLOUT_MODEL.engine_type,
    "vllm_gpu_memory_utilization": ROLLOUT_MODEL.gpu_memory_utilization,
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
