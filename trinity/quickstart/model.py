"""The tiny model of the quickstart: a Llama with a tokenizer for sums.

It has 0.43 million parameters, in an ordinary Hugging Face folder that the run reads like any other model. The
files are written without importing torch: preparing the folder is fast, and the run can still set its number of
threads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from trinity.quickstart.dataset import ANSWER_MARK

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
VOCABULARY = (PAD, EOS, UNKNOWN, *"0123456789+=,", ANSWER_MARK)
MAX_TOKENS = 64
HIDDEN, INTERMEDIATE, NUM_LAYERS, NUM_HEADS = 128, 384, 2, 4
INIT_STD = 0.02

# The user's text, then "=" as the sign that the answer begins, then the answer. A system prompt is left out: the
# vocabulary has no letters.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}{{ message['content'] }}"
    "{%- elif message['role'] == 'assistant' -%}{{ '=' + message['content'] + eos_token }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '=' }}{%- endif -%}"
)


def model_config() -> dict[str, Any]:
    """Return the content of `config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": len(VOCABULARY),
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_HEADS,
        "head_dim": HIDDEN // NUM_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_TOKENS,
        "initializer_range": INIT_STD,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": VOCABULARY.index(EOS),
        "pad_token_id": VOCABULARY.index(PAD),
    }


def build_weights(seed: int) -> dict[str, np.ndarray]:
    """Return float32 weights drawn from `seed`, under the names of a Llama."""
    generator = np.random.Generator(np.random.PCG64(seed))

    def normal(rows: int, columns: int) -> np.ndarray:
        return (generator.standard_normal((rows, columns)) * INIT_STD).astype(np.float32)

    embedding = normal(len(VOCABULARY), HIDDEN)
    embedding[VOCABULARY.index(PAD)] = 0.0
    weights = {"model.embed_tokens.weight": embedding}
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{prefix}.self_attn.{name}.weight"] = normal(HIDDEN, HIDDEN)
        weights[f"{prefix}.mlp.gate_proj.weight"] = normal(INTERMEDIATE, HIDDEN)
        weights[f"{prefix}.mlp.up_proj.weight"] = normal(INTERMEDIATE, HIDDEN)
        weights[f"{prefix}.mlp.down_proj.weight"] = normal(HIDDEN, INTERMEDIATE)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    weights["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    weights["lm_head.weight"] = normal(len(VOCABULARY), HIDDEN)
    return weights


def build_tokenizer() -> Tokenizer:
    """Return a tokenizer: a token per character, one for the result's mark."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{ANSWER_MARK}|."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD, EOS, UNKNOWN])
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "model_max_length": MAX_TOKENS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def write_model(directory: Path, *, seed: int) -> None:
    """Write weights, configuration, tokenizer and chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(build_weights(seed), directory / "model.safetensors", metadata={"format": "pt"})
    build_tokenizer().save(str(directory / "tokenizer.json"))
    ends = {key: model_config()[key] for key in ("eos_token_id", "pad_token_id")}
    _write_json(directory / "generation_config.json", ends)
    _write_json(directory / "tokenizer_config.json", tokenizer_config())
    _write_json(directory / "config.json", model_config())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
