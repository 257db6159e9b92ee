"""Compare vLLM with Hugging Face's eager forward for every model family, before and after a weight update.

Prints one JSON line a family; `vllm` of its entry in `trinity/common/models/families.json` says what it found. Each is
built tiny and random, with sizes that vLLM's kernels for a CPU take, in float32: log-probabilities of a prompt and of
samples, of the folder's weights and of others that an update brought, against Hugging Face's eager forward pass. Its
configuration has what published folders have and vLLM reads, also where transformers leaves it out. Needs the CPU build
of vLLM, for models with a part for images torchvision besides, and about half a minute a family:
`python tools/vllm_families.py [--bfloat16] [family ...]`, from the root of the repository; for families whose kernels
take bfloat16 alone, the forward pass in float32 of weights that are rounded to it is what vLLM is compared with.
Every family has a process of its own, forked from one that has imported vLLM, so that none can end the others.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tests import families
from tests.tiny import tiny_tokenizer
from trinity.common.config.model import InferenceModelConfig, ModelConfig
from trinity.common.models.families import table
from trinity.common.models.generate_params import GenerateParams
from trinity.engine.vllm.engine import VLLMEngine
from trinity.engine.vllm.settings import VLLMSettings
from trinity.engine.vllm.start import check_installed

DEADLINE_S = 300.0
LARGEST = {torch.float32: 2e-5, torch.bfloat16: 0.2}  # nats
ONCE = [5, 17, 40, 9, 63, 22, 8, 77, 31, 50, 12, 90, 44, 3, 28, 70, 66, 19, 81, 35]
TOKENS = ONCE * 2  # longer than a chunk of Llama 4's attention
PROMPT = "12+34=12+34="
# Sizes that vLLM's kernels for a CPU have; heads of 32, 64, ...
SIZES: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "n_embd", "d_model", "word_embed_proj_dim"], 128),
    **dict.fromkeys(["head_dim", "attention_head_size", "kv_channels", "v_head_dim", "swa_head_dim"], 32),
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim"], 128),
    **{name: 64 for name, value in families.SIZES.items() if value == families.SIZES["intermediate_size"]},
    "query_pre_attn_scalar": 40, "dim_model_base": 64, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32,
    "qk_head_dim": 96, "kv_lora_rank": 512, "q_lora_rank": 32, "rotary_dim": 16,
}  # fmt: skip
LATENT = {"head_dim": 64, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "num_key_value_heads": 4}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_chunk_size": 4, "mamba_d_ssm": 256}
VISION = {
    **dict.fromkeys(["num_attention_heads", "num_key_value_heads", "num_hidden_layers"], 2), "hidden_size": 32,
    "intermediate_size": 48, "head_dim": 16, "position_embedding_size": 64, "default_output_length": 70,
}  # fmt: skip
ROUTED = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
# What transformers leaves out of a configuration and vLLM reads, as published folders have it.
BESIDE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["deepseek_v3", "deepseek_v32", "glm_moe_dsa"], ROUTED),
    "afmoe": {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
    "gemma3": {
        "mm_tokens_per_image": 4, "boi_token_index": 84, "eoi_token_index": 85, "image_token_index": 86,
    },
    "gemma4": {"vision_config": VISION},
    "gemma4_text": {"num_experts": None},
    "gemma4_unified": {
        "vision_config": {"mm_embed_dim": 32, "mm_posemb_size": 16, "output_proj_dims": 32, "num_soft_tokens": 70},
    },
    "glm4_moe": {"head_dim": 32},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "gpt_bigcode": {"num_key_value_heads": 1},
    "hy_v3": {"first_k_dense_replace": 1, "expert_hidden_dim": 64, "route_norm": True, "qk_norm": True},
    "kimi_linear": ROUTED | {
        "first_k_dense_replace": 1, "mla_use_nope": True, "moe_router_activation_func": "sigmoid",
        "linear_attn_config": {
            "kda_layers": [1], "full_attn_layers": [2], "head_dim": 32, "num_heads": 4, "short_conv_kernel_size": 4,
        },
    },
    "inkling_text": {"vocab_size": 256},
    "lfm2": {"block_dim": 128, "conv_dim": 128, "conv_dim_out": 128, "block_auto_adjust_ff_dim": False},
    "llama4_text": {"attention_chunk_size": 32, "num_experts_per_tok": 1},
    "longcat_flash": {
        "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_num": 2, "zero_expert_type": "identity",
    },
    "mimo_v2_flash": ROUTED | {
        "hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1], "layernorm_epsilon": 1e-5, "rope_theta": 5e6,
        "partial_rotary_factor": 0.334, "swa_rope_theta": 1e4, "swa_head_dim": 32, "swa_v_head_dim": 32,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "sliding_window_size": families.WINDOW,
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
    },
    "minimax_m2": {"rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True},
    "qwen4_exp_text": {"indexer_head_dim": 32, "output_gate_type": "silu"},
}  # fmt: skip
# Models with other parts, and the family of their part for text.
TEXT_PARTS = {"gemma4": "gemma4_text", "gemma4_unified": "gemma4_text", "llama4": "llama4_text"}
# Weights that published folders have and transformers does not keep.
UNKEPT = {"axk1": ("model.layers.0.post_mlp_layernorm.weight", "model.norm.weight")}
# Models that vLLM starts only with a processor of images, and how the names of its classes begin.
IMAGES = {"gemma3": "Gemma3", "gemma4": "Gemma4", "gemma4_unified": "Gemma4Unified"}
# Modules of vLLM that name the tokens without which it does not start.
NAMED_TOKENS = {"inkling_text": "vllm.renderers.inkling_encoding"}


def folder_of(family: str, path: Path, *, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    """Write a tiny model and a tokenizer; return it as the trainer would read it, its weights rounded to `dtype`."""
    made = families.tiny_model(families.tiny_config(family, **BESIDE.get(family, {})), seed=seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(0.5 if parameter.dim() > 1 else 1.0)
    made.save_pretrained(path)
    if unkept := UNKEPT.get(family):
        weights = load_file(path / "model.safetensors")
        name, like = unkept
        save_file(weights | {name: torch.ones_like(weights[like])}, path / "model.safetensors", {"format": "pt"})
    tokenizer = tiny_tokenizer(path)
    if family in IMAGES:
        processor_of(path, made)
    if family in NAMED_TOKENS:
        module = importlib.import_module(NAMED_TOKENS[family])
        tokenizer.add_tokens(list(module.SPECIAL_TOKEN_SPELLINGS), special_tokens=True)
        tokenizer.save_pretrained(path)
    read: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    model: PreTrainedModel = read.to(dtype).float().eval()
    return model


def processor_of(path: Path, model: PreTrainedModel) -> None:
    """Write the processor of images without which vLLM does not start a model of Gemma 3 or 4."""
    config, is_third = model.config, model.config.model_type == "gemma3"
    parts = ("boi", "eoi", "image") if is_third else ("boi", "eoi", "image", "boa", "eoa", "audio")
    names = {f"{name}_token": f"<{name}>" for name in parts}
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path, extra_special_tokens=names)
    tokenizer.add_tokens(["\n\n", "\n\n\n", "\n\n\n\n", "<|video|>"])
    module, begin = importlib.import_module(f"transformers.models.{config.model_type}"), IMAGES[config.model_type]
    made = {name: getattr(module, f"{begin}{name}") for name in ("ImageProcessor", "Processor")}
    if is_third:
        size = dict.fromkeys(["height", "width"], config.vision_config.image_size)
        processor = made["Processor"](
            made["ImageProcessor"](size=size), tokenizer, image_seq_length=config.mm_tokens_per_image
        )
    else:
        audio, videos = getattr(module, f"{begin}AudioFeatureExtractor"), getattr(module, f"{begin}VideoProcessor")
        processor = made["Processor"](audio(), made["ImageProcessor"](), tokenizer, videos())
    processor.save_pretrained(path)


@torch.no_grad()
def expected(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """Return the log-probability of each token but the first."""
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[1:, None])[:, 0]


async def compare(family: str, folder: Path, dtype: torch.dtype) -> dict[str, Any]:
    """Return the largest differences from Hugging Face: of the folder's weights, and of others after an update."""
    models = [folder_of(family, folder / str(seed), seed=seed, dtype=dtype) for seed in range(2)]
    section = ModelConfig.model_validate({"model_path": str(folder / "0"), "max_model_len": 64})
    rollout = InferenceModelConfig()
    arguments: dict[str, Any] = {
        name: rollout.__dict__[name] for name in ("enable_prefix_caching", "enable_chunked_prefill")
    }
    number_type = str(dtype).removeprefix("torch.")
    made = VLLMEngine(VLLMSettings(section, GenerateParams(), dtype=number_type, max_num_seqs=4, engine_args=arguments))
    found: dict[str, Any] = {}
    await made.prepare()
    try:
        for version, model in enumerate(models):
            if version:
                await made.update_weights(dict(model.named_parameters()), version=version)
            scores = await made.logprobs(TOKENS)
            (sample,) = await made.generate(PROMPT, max_tokens=10, ignore_eos=True)
            drawn = expected(model, sample.tokens.tolist())[sample.prompt_length - 1 :]
            differences = [(scores - expected(model, TOKENS)).abs().max(), (sample.logprobs - drawn).abs().max()]
            found["updated" if version else "loaded"] = max(map(float, differences))
    finally:
        await made.shutdown()
    return found


def tell(result: dict[str, Any]) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def examine(family: str, dtype: torch.dtype) -> None:
    """Print what is found of a family."""
    result: dict[str, Any] = {"family": family}
    with tempfile.TemporaryDirectory() as folder:
        try:
            result |= asyncio.run(compare(family, Path(folder), dtype))
            result["is_right"] = max(result["loaded"], result["updated"]) < LARGEST[dtype]
        except Exception as error:  # noqa: BLE001 (whatever prevents it is the finding)
            result["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    tell(result)


def main(chosen: list[str], dtype: torch.dtype) -> None:
    """Examine the families, each in a process of its own."""
    families.SIZES.update({name: value for name, value in SIZES.items() if name in families.SIZES or "head" in name})
    for special in families.SPECIAL.values():
        special |= {name: value for name, value in (LATENT | MAMBA).items() if name in special}
    for whole, part in TEXT_PARTS.items():
        families.SPECIAL[whole] = {"text_config": families.SPECIAL.get(part, {}) | BESIDE[part]}
    families.SPECIAL["gemma4_unified"]["text_config"] |= {"hidden_size_per_layer_input": 0}
    families.SPECIAL["gemma3"] = {  # transformers' whole model bounds no logits
        "vision_config": {"image_size": 32, "patch_size": 8}, "text_config": {"final_logit_softcapping": None},
    }  # fmt: skip
    os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_LOGGING_LEVEL": "ERROR"}
    check_installed()
    table()["families"].clear()  # those that are refused are measured, too
    for family in chosen or families.FAMILIES:
        child = os.fork()
        if child == 0:
            os.setsid()
            examine(family, dtype)
            os._exit(0)
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.1)
        if time.monotonic() >= until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            tell({"family": family, "error": f"not ended after {DEADLINE_S:g} s"})


if __name__ == "__main__":
    is_rounded = "--bfloat16" in sys.argv
    main([name for name in sys.argv[1:] if name != "--bfloat16"], torch.bfloat16 if is_rounded else torch.float32)
