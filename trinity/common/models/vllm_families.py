"""What vLLM makes of each model family, as `tools/vllm_families.py` found it; imports neither vLLM nor torch.

Each family was built tiny and random, with sizes that vLLM's kernels for a CPU take, in float32: log-probabilities of
a prompt and of samples, of the folder's weights and of others that an update brought, against Hugging Face's eager
forward pass. A family that is not listed here could not be started on a CPU; the trial of an update at the engine's
start holds for it, too.
"""

from __future__ import annotations

FOUND_WITH = {"vllm": "0.32.0", "transformers": "5.19.0"}

RIGHT = (
    "cohere", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox",
    "gpt_oss", "granite", "granitemoe", "granitemoeshared", "llama", "mistral", "mixtral", "olmo2", "olmo3", "olmoe",
    "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "starcoder2",
)  # fmt: skip
"""Families whose log-probabilities differ by less than 2e-5 nats, before and after an update."""

WRONG = {
    "cohere2": "its attention window is one token longer there than in transformers",
    "ernie4_5_moe": "with the correction bias of its router, log-probabilities differ by up to 0.7 nats",
}
"""Families that vLLM computes otherwise than transformers, and how; they are refused."""


def family_problem(kind: str) -> str | None:
    """Return why a policy of the family `kind` (`model_type`) cannot sample with vLLM; None if nothing is known."""
    if kind not in WRONG:
        return None
    return (
        f"vLLM {FOUND_WITH['vllm']} computes {kind} models otherwise than transformers {FOUND_WITH['transformers']}, "
        f"which trains them: {WRONG[kind]}; use --set explorer.rollout_model.engine_type=torch"
    )
