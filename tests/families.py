"""A tiny random model of every causal language-model family that the installed transformers knows.

The list is transformers' own mapping, so that a new release brings its families along. Sizes are set by the names that
configurations share; what a few families need besides stands in `SPECIAL`. Everything that families compute
differently is switched on and far from its neutral value: windows shorter than the sequences, soft caps, scales,
dropout, jitter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 96
WINDOW = 5
LAYERS = 2
FAMILIES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))

_LAYER_COUNTS = (
    "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers num_decoder_layers"
)
_HIDDEN = (
    "hidden_size n_embd d_model emb_dim embedding_size word_embed_proj_dim input_embedding_size output_embedding_size"
)
_HEADS = (
    "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads encoder_attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads"
)
_INNER = (
    "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim dff dim_ff d_inner ffn_hidden_size feed_forward_size "
    "expert_ffn_hidden_size moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size "
    "intermediate_size_mlp dense_intermediate_size shared_intermediate_size n_inner"
)
_LENGTHS = (
    "max_position_embeddings n_positions n_ctx max_seq_len context_length max_source_positions max_target_positions "
    "model_max_length original_max_position_embeddings"
)
_EXPERTS = "num_experts num_local_experts n_routed_experts moe_num_experts"
_CHOSEN = "num_experts_per_tok moe_topk moe_k num_experts_per_token num_selected_experts"
_WINDOWS = (
    "sliding_window window_size attention_window_size local_attention attention_chunk_size sliding_window_size "
    "keep_window_size"
)
_SCALES = {
    "logit_scale": 0.4,
    "logits_scaling": 2.5,
    "final_logit_softcapping": 1.5,
    "attn_logit_softcapping": 0.7,
    "logits_soft_cap": 1.5,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.5,
    "query_pre_attn_scalar": 20,
    "lm_head_multiplier": 0.5,
    "logits_mup_width_multiplier": 2.0,
    "dim_model_base": 8,
    "scale_emb": 3,
    "key_multiplier": 0.7,
    "router_jitter_noise": 0.3,
    "input_jitter_noise": 0.3,
}


def _named(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


SIZES: dict[str, Any] = {
    **_named(_LAYER_COUNTS, LAYERS),
    **_named(_HIDDEN, 32),
    **_named(_HEADS, 4),
    **_named("num_key_value_heads num_kv_heads swa_num_key_value_heads", 2),
    **_named("head_dim dim_head attention_head_size kv_channels swa_head_dim d_head v_head_dim", 8),
    **_named(_INNER, 48),
    **_named(_LENGTHS, 128),
    **_named(_EXPERTS, 4),
    **_named(_CHOSEN, 2),
    **_named(_WINDOWS, WINDOW),
    **_named("vocab_size vocab_size_per_layer_input decoder_vocab_size", VOCABULARY),
    **_named("n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group", 1),
    **_named("kv_lora_rank q_lora_rank o_lora_rank mamba_dt_rank time_step_rank lru_width", 16),
    **_named("qk_rope_head_dim rotary_dim qk_nope_head_dim gated_norm_rank d_rel", 4),
    **_SCALES,
    "qk_head_dim": 8,
    "mamba_d_state": 8,
    "state_size": 8,
    "ssm_state_size": 8,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "layer_norm_eps": 1e-5,
    "index_topk": 3,
    "index_topk_blocks": 1,
    "index_block_size": 4,
    "floor_scale": 4,
    "first_k_dense_replace": 1,
    "index_head_dim": 8,
    "index_n_heads": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "hc_lowrank": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_DROPOUTS = ("dropout", "pdrop", "dropout_prob", "dropout_p", "attention_probs_dropout_prob", "layerdrop")

# What a family needs besides: its own names, or sizes that fit together.
_LATENT = {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "head_dim": 4, "num_key_value_heads": 4}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_chunk_size": 4}
_BOTH = ["linear_attention", "full_attention"]
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_ROPES = {"sliding_attention": _ROPE, "full_attention": _ROPE}
_GEMMA4 = {"per_layer_config": {}, "head_dim": 8, "hidden_size_per_layer_input": 8, "rope_parameters": _ROPES}
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        [
            "axk1",
            "axk2",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "kimi_linear",
            "longcat_flash",
            "minicpm3",
            "youtu",
        ],
        _LATENT,
    ),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA4),
    **dict.fromkeys(("gemma4", "gemma4_unified"), {"text_config": _GEMMA4}),
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {name: {**_ROPE, "mrope_section": [1, 1, 2]} for name in _ROPES}},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 4.0},
        "ffn_config": {"hidden_size": 32, "moe_top_k": 2},
    },
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.9, 0.0] * 2,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**_MAMBA, "layer_types": _BOTH},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "kimi_linear": {**_LATENT, "linear_head_dim": 8, "linear_num_heads": 4, "layer_types": _BOTH},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse", "full_attention"], "index_n_heads": 2},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 16],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 4,
    },
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "chunk_size": 4},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"], "is_decoder": True},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
    },
    "zaya": {"num_experts_per_tok": 1},
}


# Models that do not read a list of text tokens, or whose parts are not in this environment.
NOT_BUILT = {
    "blt": "reads bytes through three models",
    "gemma3n": "needs timm",
    "gemma4_assistant": "drafts for another model",
    "gemma4_unified_assistant": "drafts for another model",
    "musicgen": "writes audio tokens of a text encoder's prompt",
    "musicgen_melody": "writes audio tokens of a text encoder's prompt",
    "qwen4_exp": "holds a vision model; its text model is qwen4_exp_text",
    "xlstm": "its own code does not run at tiny sizes",
}


def _shrunk(config: PreTrainedConfig, special: Mapping[str, Any], *, dropout: float) -> dict[str, Any]:
    """Return the arguments that make a configuration tiny."""
    known = config.to_dict()
    made = {name: value for name, value in SIZES.items() if name in known}
    made |= {name: dropout for name in known if name.endswith(_DROPOUTS) and isinstance(known[name], float)}
    for name, value in known.items():
        inner = vars(config).get(name)
        if isinstance(inner, PreTrainedConfig):
            made[name] = _shrunk(inner, special.get(name) or {}, dropout=dropout)
            made[name] |= {"model_type": inner.model_type} if inner.model_type else {}
        elif name in ("layer_types", "mlp_layer_types", "layers_block_type", "block_types") and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            made[name] = kinds if len(kinds) >= LAYERS else kinds * LAYERS
    made |= {name: value for name, value in special.items() if not isinstance(vars(config).get(name), PreTrainedConfig)}
    return made


def tiny_config(family: str, *, dropout: float = 0.0, **changes: Any) -> PreTrainedConfig:
    """Return a configuration of a few thousand parameters.

    Args:
        family: `model_type` of transformers.
        dropout: every dropout rate of the family.
        changes: entries besides.
    """
    made = _shrunk(CONFIG_MAPPING[family](), SPECIAL.get(family, {}), dropout=dropout)
    return CONFIG_MAPPING[family](**{**made, **changes})


def tiny_model(config: PreTrainedConfig, *, seed: int = 0) -> PreTrainedModel:
    """Return a float32 model with eager attention and weights large enough that every part of it counts."""
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.3, generator=generator)
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def variants(family: str) -> dict[str, dict[str, Any]]:
    """Return further configurations of a family by name: what its default leaves out."""
    made = dict(_VARIANTS.get(family, {}))
    known = CONFIG_MAPPING[family]().to_dict() if family not in NOT_BUILT else {}
    if "sliding_window" in known and set(known.get("layer_types") or ()) == {"full_attention"}:
        made["window"] = {"layer_types": ["sliding_attention", "full_attention"]}
    return made


_VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "falcon": {"alibi": {"alibi": True}, "grouped": {"new_decoder_architecture": True}},
    "gpt_bigcode": {"many heads": {"multi_query": False}},
    "llama": {
        "gelu": {"hidden_act": "gelu"},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        "yarn": {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 8,
            }
        },
    },
}
CASES = [(family, name) for family in FAMILIES if family not in NOT_BUILT for name in ("", *variants(family))]


def case_config(family: str, name: str, *, dropout: float = 0.0) -> PreTrainedConfig:
    """Return the tiny configuration of one of `CASES`."""
    return tiny_config(family, dropout=dropout, **(variants(family)[name] if name else {}))
