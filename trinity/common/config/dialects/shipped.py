"""What veRL's own file of defaults has in keys without effect here.

They are of veRL 0.9. Whoever has such a file did not choose these values, so they are reported together. Defaults from
which something follows are in the table itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROLLOUT = "actor_rollout_ref.rollout"
_MODELS = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
_SHARDING = {
    "distributed": {
        "fully_shard_parallel_size": 16, "tensor_parallel_size": 1, "expert_parallel_size": 1,
        "expert_fully_shard_parallel_size": 1, "ulysses_parallel_size": 1,
        "fsdp_plan": {"param_dtype": "bf16", "reduce_dtype": "fp32", "output_dtype": "bf16",
                      "fsdp_implementation": "native", "num_to_forward_prefetch": 1, "num_to_backward_prefetch": 1},
    },
}  # fmt: skip
_ADAPTER = {
    "type": "lora", "merge": False, "rank": 0, "alpha": 32, "dropout": 0.0, "dropout_position": "pre",
    "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"], "exclude_modules": [],
    "lora_A_init_method": "xavier", "lora_B_init_method": "zero", "a2a_experimental": False, "dtype": None,
    "adapter_path": None, "freeze_vision_model": True, "freeze_vision_projection": True, "freeze_language_model": True,
}  # fmt: skip
_SCORING = {
    "dtype": "bfloat16", "gpu_memory_utilization": 0.5, "enforce_eager": True, "free_cache_engine": True,
    "data_parallel_size": 1, "expert_parallel_size": 1, "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1, "max_num_batched_tokens": 8192, "max_num_seqs": 1024, "load_format": "auto",
    "layered_summon": False, "scheduling_policy": "fcfs", "full_determinism": False, "seed": 42,
    "multi_stage_wake_up": False, "engine_kwargs": {}, "enable_chunked_prefill": True, "enable_prefix_caching": True,
    "disable_log_stats": True, "skip_tokenizer_init": False, "ignore_eos": False, "temperature": 1.0, "top_k": -1,
    "top_p": 1, "do_sample": True, "n": 1, "prompt_length": 2048, "response_length": 2048,
    "disaggregation": {"enabled": False, "prefill_replicas": 1, "decode_replicas": 1, "transfer_backend": "nixl"},
}  # fmt: skip
_SWITCHING = {
    "enable_switch": False, "switch_threshold_ratio": 0.4, "adaptive_switch_threshold": True,
    "switch_threshold_step_up": 0.05, "switch_threshold_step_down": 0.03, "switch_threshold_release_steps": 2,
    "switch_cost_window_size": 3,
}  # fmt: skip
_TRAINING = {
    "trainer_mode": "sync", "sync": {}, "colocate_async": {"num_warmup_batches": 1},
    "separate_async": {"num_warmup_batches": 1, "parameter_sync_step": 4, "hybrid_rollout": _SWITCHING},
    "sampler": {"max_off_policy_threshold": 8, "max_off_policy_strategy": "drop", "sync_refill_failed_groups": False,
                "sampler_kwargs": {}},
}  # fmt: skip
_TRACED = {"trace": "cuda,nvtx,cublas,ucx", "cuda-memory-usage": "true", "cuda-graph-trace": "graph"}
_PROFILED = {
    "profile_continuous_steps": False, "save_path": "outputs/profile", "relocate_results": False,
    "finish_hook_all_ranks": False, "finish_hook_ranks": [],
    "global_tool_config": {
        "nsys": {"discrete": False, "controller_nsight_options": _TRACED,
                 "worker_nsight_options": _TRACED | {"capture-range": "cudaProfilerApi", "kill": "none"}},
        "torch_memory": {"trace_alloc_max_entries": 100000, "stack_depth": 32, "memory_snapshot_num_steps": 1,
                         "context": "all", "stacks": "all", "kw_args": {}},
        "precision_debugger": {"strict": False},
    },
}  # fmt: skip

SHIPPED: Mapping[str, Any] = {
    **{f"{place}.rollout_n": 1 for place in _MODELS},
    **{f"{place}.use_torch_compile": True for place in _MODELS},
    **{f"{place}.ulysses_sequence_parallel_size": 1 for place in _MODELS},
    **{f"{place}.{name}.use_torch_compile": True for place in _MODELS for name in ("fsdp", "fsdp_config")},
    **{f"{place}.{name}.turbo_config": _SHARDING for place in _MODELS for name in ("fsdp", "fsdp_config")},
    **{f"{place}.model.fused_kernel_options": {"impl_backend": "torch"} for place in ("actor_rollout_ref", "critic")},
    **{f"{place}.model.lora": _ADAPTER for place in ("actor_rollout_ref", "critic")},
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 16384,
    f"{_ROLLOUT}.mode": "async",
    f"{_ROLLOUT}.n_gpus_per_node": 8,
    f"{_ROLLOUT}.enforce_eager": False,
    f"{_ROLLOUT}.enable_chunked_prefill": True,
    f"{_ROLLOUT}.max_num_batched_tokens": 8192,
    f"{_ROLLOUT}.max_num_seqs": 256,
    f"{_ROLLOUT}.tensor_model_parallel_size": 2,
    f"{_ROLLOUT}.free_cache_engine": True,
    f"{_ROLLOUT}.load_format": "dummy",
    f"{_ROLLOUT}.layered_summon": False,
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": False,
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": 16384,
    f"{_ROLLOUT}.disable_log_stats": True,
    f"{_ROLLOUT}.multi_stage_wake_up": False,
    f"{_ROLLOUT}.agent": {"num_workers": 8, "default_agent_loop": "single_turn_agent"},
    f"{_ROLLOUT}.checkpoint_engine": {
        "backend": "naive", "update_weights_bucket_megabytes": 2048, "engine_kwargs": {},
    },
    f"{_ROLLOUT}.trace": {"project_name": "verl_examples", "experiment_name": "gsm8k", "token2text": False},
    "data.return_raw_chat": True,
    "critic.grad_clip": 1.0,
    "critic.model.lora_alpha": 16,
    "critic.model.target_modules": "all-linear",
    "reward.num_workers": 8,
    "reward.reward_model.rollout": _SCORING,
    "algorithm.pf_ppo": {"reweight_method": "pow", "weight_pow": 2.0},
    "trainer.ray_wait_register_center_timeout": 300,
    "trainer.device": "cuda",
    "trainer.use_v1": True,
    "trainer.v1": _TRAINING,
    "global_profiler": _PROFILED,
}  # fmt: skip
"""By key; what is null in a section is left out."""


def is_as_shipped(value: Any, default: Any) -> bool:
    """Return whether a value is one of veRL's own defaults.

    A section is one if each value in it is one or is null.
    """
    if isinstance(value, dict):
        known = default if isinstance(default, dict) else {}
        return all(inner is None or is_as_shipped(inner, known.get(name)) for name, inner in value.items())
    return bool(value is None or (value == default and isinstance(value, bool) == isinstance(default, bool)))
