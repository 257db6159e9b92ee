"""Arguments that `extra_engine_args` may hold: those without other keys."""

from __future__ import annotations

TORCH_ENGINE_ARGS = ("device", "max_num_seqs")
"""Arguments of the torch engine; all others are vLLM's."""

KEY_ARGS = (
    "dtype", "seed", "max_model_len", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill", "gpu_memory_utilization",
    "enable_expert_parallel", "trust_remote_code", "nnodes", "node_rank",
)  # fmt: skip
"""Arguments of vLLM that are keys of `explorer.rollout_model`."""

FIXED_ARGS = (
    "model", "tokenizer", "runner", "convert", "generation_config", "override_generation_config", "logprobs_mode",
    "logits_processors", "worker_cls", "worker_extension_cls", "additional_config", "speculative_config",
    "skip_tokenizer_init", "enable_lora", "model_weights", "load_format", "disable_log_stats",
)  # fmt: skip
"""Arguments of vLLM that the engine sets itself, since its samples and updates depend on them."""
