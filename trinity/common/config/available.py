"""What this version can do, in one table.

Every key of the published configuration exists in the schema. A key whose function comes later may be written
with the values listed here; any other value is answered with `E1900`, never ignored. Defaults are always fine.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from trinity.common.config.draft import Draft, path_of
from trinity.common.config.honoured import ANY, CRITIC_KEYS, REWARD_MODEL_KEYS
from trinity.common.config.problems import shown_value
from trinity.common.config.renames import set_from
from trinity.common.config.rules.critic import may_read_values
from trinity.common.config.schema_index import default_at
from trinity.common.config.tree import Path, dotted, value_at

LATER_NAMES: dict[str, tuple[str, ...]] = {
    "workflow": (
        "math_boxed_workflow", "async_math_boxed_workflow", "math_eval_workflow", "async_math_eval_workflow",
        "math_rm_workflow", "async_math_rm_workflow", "tool_call_workflow", "agentscope_workflow_adapter",
        "agentscope_workflow_adapter_v1", "agentscope_react_workflow", "as_react_workflow",
        "agentscope_react_math_workflow", "agentscopev0_react_math_workflow", "agentscope_v1_react_search_workflow",
        "email_search_workflow", "alfworld_workflow", "RAFT_alfworld_workflow", "RAFT_reflect_alfworld_workflow",
        "step_wise_alfworld_workflow", "frozen_lake_workflow", "sciworld_workflow", "webshop_workflow",
        "intercode_sql_workflow", "sudoku_workflow", "async_math_ruler_workflow", "math_ruler_workflow",
        "math_trainable_ruler_workflow", "rubric_judge_workflow", "rubric_judge_openai_workflow",
        "simple_mm_workflow", "async_simple_mm_workflow",
    ),
    "reward_fn": ("math_boxed_reward", "math_dapo_reward"),
    "operator": (
        "reward_filter", "reward_std_filter", "invalid_reward_filter", "dapo_dynamic_sampling",
        "mask_response_truncated", "reward_shaping_mapper", "pass_rate_calculator", "data_juicer",
    ),
    "selector": ("sequential", "shuffle", "random", "offline_easy2hard", "difficulty_based"),
    "monitor": ("tensorboard", "wandb", "mlflow", "swanlab"),
}  # fmt: skip

_TREE = "trainer.trainer_config"
_TRUNK = ("trainer", "trainer_config")
_ACTOR = f"{_TREE}.actor_rollout_ref.actor"
_MODEL = f"{_TREE}.actor_rollout_ref.model"
_REF = f"{_TREE}.actor_rollout_ref.ref"

VALUES: dict[str, tuple[Any, ...]] = {
    "mode": ("both", "train", "explore", "bench"),
    "ignore_validator_suggestions": (ANY,),
    "plugin_dirs": (ANY,),
    "algorithm.enable_router_replay": (False,),
    "model.logprobs": (0,),
    "model.repetition_penalty": (1.0,),
    "model.enable_thinking": (None,),
    "model.lora_configs.*.lora_dtype": ("auto", "float32"),
    "model.fully_sharded_loras": (False,),
    "model.max_cpu_loras": (None,),
    "model.rope_scaling*": (None, {}),
    "model.rope_theta": (None,),
    "model.tinker.enable": (False,),
    "buffer.explorer_input.*.storage_type": ("file",),
    "buffer.explorer_input.*.max_retry_times": (),
    "buffer.explorer_input.*.max_retry_interval": (),
    "buffer.explorer_input.*.enable_progress_bar": (False,),
    "buffer.explorer_input.*.rollout_args.n": (1,),
    "buffer.explorer_input.*.rollout_args.logprobs": (0,),
    "buffer.*.format.image_key": (None,),
    "buffer.*.format.video_key": (None,),
    "buffer.trainer_input.experience_buffer.max_retry_times": (),
    "buffer.trainer_input.experience_buffer.max_retry_interval": (),
    "buffer.trainer_input.auxiliary_buffers.*.replay_buffer.enable": (False,),
    "buffer.trainer_input.auxiliary_buffers.*.max_retry_times": (),
    "buffer.trainer_input.auxiliary_buffers.*.max_retry_interval": (),
    "explorer.proxy_port": (),
    "explorer.listen_address": (),
    "explorer.service_status_check_interval": (),
    "explorer.min_running_model_num": (),
    "explorer.db_url": (None,),
    "explorer.rollout_model.*": (),
    "explorer.auxiliary_models.*": (),
    "trainer.trainer_type": ("verl",),
    "trainer.trainer_strategy": ("fsdp", "fsdp2", "megatron"),
    "trainer.enable_preview": (False,),
    "trainer.use_remove_padding": (ANY,),
    "trainer.param_offload": (ANY,),
    "trainer.optimizer_offload": (ANY,),
    "trainer.grad_offload": (ANY,),
    "trainer.offload_policy": (ANY,),
    "trainer.megatron.*": (ANY,),
    f"{_TREE}.*": (),
    "synchronizer.wait_for_checkpoint": (False,),
    "monitor.detailed_stats": (False,),
    "data_processor.experience_pipeline.save_input": (False,),
    "data_processor.experience_pipeline.input_save_path": (None,),
    "data_processor.experience_pipeline.inputs*": ({},),
    "data_processor.experience_pipeline.output*": (None, {}),
}

SECTIONS = (
    "buffer.explorer_input.tasksets",
    "service.data_juicer",
    "data_processor.task_pipeline",
)

ROLLOUT_MODEL = (
    "engine_num", "dtype", "enable_history", "seed", "trust_remote_code", "temperature", "top_p", "top_k",
    "max_model_len", "max_prompt_tokens", "max_response_tokens", "min_response_tokens", "enable_prompt_truncation",
    "chat_template", "ignore_eos", "extra_engine_args*", "gpu_memory_utilization", "tensor_parallel_size",
    "pipeline_parallel_size", "data_parallel_size",
    "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill",
    "enable_expert_parallel", "enable_log_requests",
)  # fmt: skip

HONOURED: dict[str, tuple[Any, ...]] = {
    **{f"explorer.rollout_model.{name}": (ANY,) for name in ROLLOUT_MODEL},
    "explorer.rollout_model.engine_type": ("auto", "torch", "vllm", "vllm_async", "external"),
    "explorer.rollout_model.external_model_config.*": (ANY,),
    **{f"explorer.auxiliary_models.*.{name}": (ANY,) for name in ("model_path", "name", *ROLLOUT_MODEL)},
    "explorer.auxiliary_models.*.engine_type": ("auto", "torch", "vllm", "vllm_async", "external"),
    "explorer.auxiliary_models.*.external_model_config.*": (ANY,),
    "explorer.auxiliary_models.*.logprobs": (0, 1),
    "explorer.auxiliary_models.*.repetition_penalty": (1.0,),
    f"{_MODEL}.enable_gradient_checkpointing": (ANY,),
    f"{_MODEL}.use_remove_padding": (ANY,),
    f"{_MODEL}.external_lib": (ANY,),
    f"{_MODEL}.override_config*": (ANY,),
    f"{_MODEL}.use_fused_kernels": (ANY,),  # the output layer is always computed so
    f"{_MODEL}.fused_kernel_options.impl_backend": (ANY,),
    f"{_MODEL}.trust_remote_code": (ANY,),
    f"{_ACTOR}.strategy": ("fsdp", "fsdp2", "megatron"),
    f"{_ACTOR}.megatron.*": (ANY,),
    f"{_ACTOR}.ppo_mini_batch_size": (ANY,),
    f"{_ACTOR}.ppo_micro_batch_size": (ANY,),
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": (ANY,),
    f"{_ACTOR}.use_dynamic_bsz": (ANY,),
    f"{_ACTOR}.ppo_max_token_len_per_gpu": (ANY,),
    f"{_ACTOR}.grad_clip": (ANY,),
    f"{_ACTOR}.ppo_epochs": (ANY,),
    f"{_ACTOR}.shuffle": (ANY,),
    f"{_ACTOR}.data_loader_seed": (ANY,),
    f"{_ACTOR}.ulysses_sequence_parallel_size": (ANY,),
    f"{_ACTOR}.checkpoint.save_contents": (ANY,),
    f"{_ACTOR}.checkpoint.load_contents": (ANY,),
    f"{_ACTOR}.fsdp_config.use_orig_params": (ANY,),
    f"{_ACTOR}.entropy_from_logits_with_chunking": (ANY,),
    f"{_ACTOR}.entropy_checkpointing": (ANY,),
    f"{_ACTOR}.fix_actor_microbatch_loss_scale": (ANY,),
    f"{_ACTOR}.fsdp_config.wrap_policy.*": (ANY,),
    f"{_ACTOR}.fsdp_config.fsdp_size": (ANY,),
    f"{_ACTOR}.fsdp_config.forward_prefetch": (ANY,),
    f"{_ACTOR}.fsdp_config.param_offload": (ANY,),
    f"{_ACTOR}.fsdp_config.optimizer_offload": (ANY,),
    f"{_ACTOR}.fsdp_config.grad_offload": (ANY,),
    f"{_ACTOR}.fsdp_config.offload_policy": (ANY,),
    f"{_ACTOR}.fsdp_config.reshard_after_forward": (ANY,),
    f"{_ACTOR}.fsdp_config.dtype": (ANY,),
    f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype": (ANY,),
    f"{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype": (ANY,),
    f"{_ACTOR}.fsdp_config.model_dtype": (None, "fp32", "float32"),
    f"{_ACTOR}.optim.lr": (ANY,),
    f"{_ACTOR}.optim.lr_warmup_steps": (ANY,),
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": (ANY,),
    f"{_ACTOR}.optim.min_lr_ratio": (ANY,),
    f"{_ACTOR}.optim.warmup_style": (ANY,),
    f"{_ACTOR}.optim.lr_scheduler_type": (ANY,),
    f"{_ACTOR}.optim.weight_decay": (ANY,),
    f"{_ACTOR}.optim.betas*": (ANY,),
    f"{_ACTOR}.optim.total_training_steps": (ANY,),
    f"{_REF}.strategy": ("fsdp", "fsdp2", "megatron"),
    f"{_REF}.megatron.*": (ANY,),
    f"{_REF}.log_prob_micro_batch_size": (ANY,),
    f"{_REF}.log_prob_micro_batch_size_per_gpu": (ANY,),
    f"{_REF}.log_prob_use_dynamic_bsz": (ANY,),
    f"{_REF}.log_prob_max_token_len_per_gpu": (ANY,),
    f"{_REF}.ulysses_sequence_parallel_size": (ANY,),
    f"{_REF}.entropy_from_logits_with_chunking": (ANY,),
    f"{_REF}.entropy_checkpointing": (ANY,),
    f"{_REF}.fsdp_config.param_offload": (ANY,),
    f"{_REF}.fsdp_config.offload_policy": (ANY,),
    f"{_REF}.fsdp_config.reshard_after_forward": (ANY,),
    f"{_REF}.fsdp_config.wrap_policy.*": (ANY,),
    f"{_REF}.fsdp_config.fsdp_size": (ANY,),
    f"{_REF}.fsdp_config.forward_prefetch": (ANY,),
    f"{_TREE}.actor_rollout_ref.hybrid_engine": (ANY,),
    f"{_TREE}.trainer.balance_batch": (ANY,),
    f"{_TREE}.trainer.default_hdfs_dir": (ANY,),
    f"{_TREE}.trainer.critic_warmup": (ANY,),
    f"{_TREE}.trainer.resume_mode": (ANY,),
    f"{_TREE}.trainer.resume_from_path": (ANY,),
    f"{_TREE}.trainer.remove_previous_ckpt_in_save": (ANY,),
    f"{_TREE}.trainer.del_local_ckpt_after_load": (ANY,),
    f"{_TREE}.trainer.max_actor_ckpt_to_keep": (ANY,),
    f"{_TREE}.trainer.max_critic_ckpt_to_keep": (ANY,),
    **CRITIC_KEYS,
    **REWARD_MODEL_KEYS,
}

MIRRORS: dict[str, str] = {
    **{f"explorer.rollout_model.{name}": f"model.{name}" for name in ("model_path", "logprobs", "repetition_penalty")},
    f"{_MODEL}.path": "model.model_path",
    f"{_ACTOR}.loss_agg_mode": "algorithm.loss_agg_mode",
    f"{_ACTOR}.use_rollout_log_probs": "algorithm.bypass_old_logprobs",
    f"{_TREE}.critic.rollout_n": "algorithm.repeat_times",
}

WAYS_OUT: dict[str, str] = {
    "explorer.rollout_model.engine_type": "use --set explorer.rollout_model.engine_type=torch",
    **{f"{_MODEL}.{name}": "write `model.lora_configs`" for name in ("lora_rank", "lora_alpha", "lora_adapter_path")},
    "explorer.rollout_model.lora_configs": "write `model.lora_configs`",
    f"{_TREE}.algorithm.rollout_correction": "write `algorithm.rollout_correction`",
}


def check_available(draft: Draft) -> None:
    """Note `E1900` for each written value that needs a function of a later version."""
    for section in SECTIONS:
        path = path_of(section)
        if draft.is_given(section) and draft.tree.get(path) not in ({}, [], "None") and not _is_unused(draft, path):
            draft.problem("E1900", section, f"`{section}` is not available yet in this version",
                          suggestion=f"remove `{section}`")  # fmt: skip
    for path in dict.fromkeys(_value_path(leaf) for leaf in draft.tree.leaves()):
        key = dotted(path)
        if _is_unused(draft, path) or any(key.startswith(section) for section in SECTIONS):
            continue
        allowed = _allowed(key)
        value = _value(draft, path)
        if allowed is None or _matches(value, allowed) or _is_default(path, value) or _is_mirror(draft, key, value):
            continue
        draft.problem("E1900", key, f"`{key}: {shown_value(key, value)}` is not available yet in this version",
                      suggestion=_way_out(key) or _hint(key, allowed), rule=_rule(allowed))  # fmt: skip


def _way_out(key: str) -> str | None:
    """Return what to write instead of a key or of the section that it is in."""
    return WAYS_OUT.get(key) or WAYS_OUT.get(key.rpartition(".")[0])


def _value_path(leaf: Path) -> Path:
    """Return the path of the value that a leaf belongs to: a list of words is one value."""
    while leaf and isinstance(leaf[-1], int):
        leaf = leaf[:-1]
    return leaf


def _is_unused(draft: Draft, path: Path) -> bool:
    """Return whether a section is not used: the explorer's in mode train, the critic's without one."""
    if set_from(path) is not None or (path[:3] == (*_TRUNK, "critic") and not may_read_values(draft)):
        return True
    if path[:3] == (*_TRUNK, "reward_model") and not draft.get("trainer.trainer_config.reward_model.enable"):
        return True
    return not draft.explores and (path[0] == "explorer" or path[:2] == ("buffer", "explorer_input"))


def _allowed(key: str) -> tuple[Any, ...] | None:
    for table in (HONOURED, VALUES):
        for pattern in _patterns(key, table):
            return table[pattern]
    return None


def _patterns(key: str, table: dict[str, tuple[Any, ...]]) -> Iterator[str]:
    if key in table:
        yield key
    for pattern in table:
        if "*" in pattern and fnmatchcase(key.replace("[", ".").replace("]", ""), pattern):
            yield pattern


def _value(draft: Draft, path: Path) -> Any:
    """Return the written value as the schema reads it: `no` is false, `None` is null."""
    try:
        return value_at(draft.typed, path)
    except KeyError:
        return draft.tree.get(path)


def _is_mirror(draft: Draft, key: str, value: Any) -> bool:
    """Return whether a key only repeats the one that it would be filled from."""
    if key == f"{_ACTOR}.use_kl_loss":
        return bool(value == (draft.get("algorithm.kl_loss_fn") != "none"))
    return key in MIRRORS and bool(draft.get(MIRRORS[key]) == value)


def _matches(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(choice is ANY or (choice == value and type(choice) is type(value)) or _same_number(choice, value)
               for choice in allowed)  # fmt: skip


def _same_number(left: Any, right: Any) -> bool:
    numbers = (int, float)
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    return isinstance(left, numbers) and isinstance(right, numbers) and left == right


def _is_default(path: Path, value: Any) -> bool:
    if value is None:
        return True
    has_default, default = default_at(path)
    plain = list(default) if isinstance(default, tuple) else default
    return has_default and (plain == value or str(plain) == str(value))


def _hint(key: str, allowed: tuple[Any, ...]) -> str:
    words = [str(value) for value in allowed if value not in (None, {}, [], ANY)]
    return f"available: {', '.join(words)}" if words else f"remove `{key.rsplit('.', 1)[-1]}`"


def _rule(allowed: tuple[Any, ...]) -> str:
    return f"one of {', '.join(str(v) for v in allowed)}" if allowed else "the default"
