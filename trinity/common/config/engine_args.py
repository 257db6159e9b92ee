"""Arguments that `extra_engine_args` may hold: those without other keys."""

from __future__ import annotations

TORCH_ENGINE_ARGS = ("device", "max_num_seqs")
"""Arguments of the torch engine; all others are vLLM's."""

FIXED_ARGS = (
    "model", "tokenizer", "runner", "convert", "generation_config", "override_generation_config", "logprobs_mode",
    "logits_processors", "worker_cls", "worker_extension_cls", "additional_config", "speculative_config",
    "skip_tokenizer_init", "enable_lora", "model_weights", "load_format", "disable_log_stats",
)  # fmt: skip
"""Arguments of vLLM that the engine sets itself, since its samples and updates depend on them."""
