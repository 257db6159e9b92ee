"""Arguments that `extra_engine_args` may hold: those without other keys."""

from __future__ import annotations

TORCH_ENGINE_ARGS = ("device", "max_num_seqs")
"""Arguments of the torch engine; all others are vLLM's."""

IMAGE_CACHE_ARGS = ("mm_processor_cache_gb", "disable_mm_preprocessor_cache")
"""Arguments of every engine that reads images: memory of prepared images in GiB, and whether there is none."""

FIXED_ARGS = (
    "model", "tokenizer", "runner", "convert", "generation_config", "override_generation_config", "logprobs_mode",
    "logits_processors", "worker_cls", "worker_extension_cls", "additional_config", "speculative_config",
    "skip_tokenizer_init", "enable_lora", "model_weights", "load_format", "disable_log_stats", "limit_mm_per_prompt",
    "mm_device_do_normalize", "mm_processor_kwargs",
)  # fmt: skip
"""Arguments of vLLM that the engine sets itself, since its samples and updates depend on them."""
