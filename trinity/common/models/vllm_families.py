"""What vLLM makes of each model family, as `tools/vllm_families.py` found it; imports neither vLLM nor torch.

Each family was built tiny and random, with sizes that vLLM's kernels for a CPU take, in float32: log-probabilities of
a prompt and of samples, of the folder's weights and of others that an update brought, against Hugging Face's eager
forward pass. A family that is not listed here could not be started on a CPU; the trial of an update at the engine's
start holds for it, too.
"""

from __future__ import annotations

FOUND_WITH = {"vllm": "0.32.0", "transformers": "5.19.0"}

RIGHT = (
    "cohere", "dots1", "ernie4_5", "exaone4", "flex_olmo", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe",
    "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoe", "granitemoeshared", "hunyuan_v1_moe", "llama", "mistral",
    "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
)  # fmt: skip
"""Families whose log-probabilities differ by less than 2e-5 nats, before and after an update."""

WRONG = {
    "cohere2": "its attention window is one token longer there than in transformers",
    "ernie4_5_moe": "with the correction bias of its router, log-probabilities differ by up to 0.7 nats",
    "jetmoe": "log-probabilities differ by several nats",
}
"""Families that vLLM computes otherwise than transformers, and how; they are refused."""

WRONG_ON_CPU = {
    "bloom": "log-probabilities differ by 0.001 nats",
    "deepseek_v2": "log-probabilities differ by several nats",
    "deepseek_v3": "log-probabilities differ by several nats",
}
"""The same of families that have other kernels on a GPU, where they have not been measured; refused on a CPU."""

NOT_STARTED = {
    "dbrx": "vLLM finds no place for its experts",
    "falcon": "vLLM does not load it",
    "lfm2": "vLLM asks its configuration for block_dim",
    "llama4_text": "the kernel for experts on a CPU is not made for its router",
    "minimax_m2": "vLLM asks its configuration for rotary_dim",
    "mpt": "vLLM does not read its configuration",
    "phimoe": "vLLM's layer of experts does not read its router",
    "qwen3_next": "vLLM's linear attention on a CPU takes bfloat16 alone",
}
"""Families that did not start; whoever asks for them is told so by vLLM (E3222)."""


def family_problem(kind: str, *, is_cpu: bool = False) -> str | None:
    """Return why a policy of the family `kind` (`model_type`) cannot sample with vLLM; None if nothing is known.

    Args:
        kind: of the model.
        is_cpu: vLLM computes on a CPU.
    """
    found = WRONG | WRONG_ON_CPU if is_cpu else WRONG
    if kind not in found:
        return None
    return (
        f"vLLM {FOUND_WITH['vllm']} computes {kind} models otherwise than transformers {FOUND_WITH['transformers']}, "
        f"which trains them{' (on a CPU)' if kind in WRONG_ON_CPU else ''}: {found[kind]}; use "
        "--set explorer.rollout_model.engine_type=torch"
    )
