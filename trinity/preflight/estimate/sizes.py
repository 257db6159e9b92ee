"""The sizes of a model, from its `config.json`; no weight is read.

The families that the code computes itself are counted by a formula. Of the others transformers makes the model without
weights, on PyTorch's meta device, which takes some seconds of imports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity.common.errors import EnvironmentProblem
from trinity.common.models.families import OWN, QKV_BIAS
from trinity.preflight.model_files import UnreadableFile, read_headers, read_mapping

FORMULA, LIBRARY, HEADERS = "formula", "transformers", "headers of the weight files"
COUNTED = (*OWN, "mistral")
"""Families whose parameters the formula counts."""
_LARGE: dict[str, Any] = {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016}
_LAYERS: dict[str, Any] = {"num_hidden_layers": 32, "num_attention_heads": 32}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, **_LAYERS},
    "qwen2": {**_LARGE, **_LAYERS, "num_key_value_heads": 32},
    "qwen3": {**_LARGE, **_LAYERS, "num_key_value_heads": 32, "head_dim": 128},
    "mistral": {
        **{"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, **_LAYERS},
        "num_key_value_heads": 8,
    },
}
"""What transformers takes where `config.json` has no such entry."""
_NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "d_kv", "kv_channels", "attention_head_size", "v_head_dim"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "decoder_ffn_dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}
_EXPERTS_OF_A_TOKEN = ("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token", "num_selected_experts")
_OF_AN_EXPERT = ("moe_intermediate_size", "expert_ffn_hidden_size")


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a language model.

    Attributes:
        kind: its `model_type`.
        hidden: hidden size.
        layers: number of layers.
        heads: query heads of a layer.
        kv_heads: key heads of a layer.
        head_size: numbers of a head.
        feed_forward: width of the feed-forward part that a token passes; of experts, of those of a token together.
        vocabulary: rows of the embedding.
        is_tied: the output layer is the embedding.
        has_head_norms: queries and keys are normed.
        num_parameters: all of them, each once.
        counted_by: how they were counted.
    """

    kind: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    is_tied: bool
    has_head_norms: bool
    num_parameters: int
    counted_by: str

    @property
    def is_own(self) -> bool:
        """Whether trainer and torch engine have their own forward pass."""
        return self.kind in OWN

    @property
    def query(self) -> int:
        """Numbers of a token's queries in a layer."""
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        """Numbers of a token's keys in a layer, and of its values."""
        return self.kv_heads * self.head_size

    @property
    def matrices(self) -> dict[str, int]:
        """Numbers of the matrices of a layer as they are multiplied."""
        return {
            "qkv": self.hidden * (self.query + 2 * self.key),
            "out": self.hidden * self.query,
            "gate_up": 2 * self.hidden * self.feed_forward,
            "down": self.hidden * self.feed_forward,
        }

    @property
    def embedding(self) -> int:
        """Numbers of the embedding, and of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def largest_layer(self) -> int:
        """Numbers of a layer, all experts included."""
        outer = self.embedding * (1 if self.is_tied else 2)
        return math.ceil(max(0, self.num_parameters - outer) / self.layers)

    def of_critic(self) -> int:
        """Return the parameters of a value model of this shape."""
        return self.num_parameters - (0 if self.is_tied else self.embedding) + self.hidden + 1


def sizes_of(folder: Path, overrides: Mapping[str, Any] | None = None, *, trusts_code: bool = False) -> ModelSizes:
    """Return the sizes of the model in `folder`.

    Args:
        folder: holds a `config.json`; nothing else is needed.
        overrides: entries that replace those of `config.json` (`override_config`).
        trusts_code: Python code that came with the model may run.

    Raises:
        EnvironmentProblem: there is no `config.json` that can be read, or it does not say the sizes (E3101).
    """
    try:
        written = read_mapping(folder / "config.json")
    except UnreadableFile as error:
        raise EnvironmentProblem(f"nothing is known of the model in {folder}: {error}", code="E3101") from error
    config, kind = _with(written, overrides or {}), str(written.get("model_type"))
    if kind in COUNTED and not config.get("quantization_config"):
        return _by_formula({**_DEFAULTS[kind], **config}, kind)
    try:
        filled, count = _by_library(folder, overrides or {}, trusts_code=trusts_code)
        how = LIBRARY
    except (ImportError, OSError, ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        count, how, filled = sum(math.prod(shape) for shape in read_headers(folder).values()), HEADERS, config
        if not count:
            raise EnvironmentProblem(
                f"the parameters of the model in {folder}, of type {kind}, cannot be counted: transformers cannot make "
                f"it ({type(error).__name__}: {error}), and there are no weight files whose headers say them",
                code="E3101",
            ) from error
    return _by_names(_language(filled), kind, count=count, how=how, folder=folder)


def _with(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(config)
    for name, value in overrides.items():
        old = changed.get(name)
        changed[name] = _with(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return changed


def _language(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a configuration that has the language model."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def _by_formula(config: Mapping[str, Any], kind: str) -> ModelSizes:
    hidden, heads, layers = (int(config[name]) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_size = int(config.get("head_dim") or hidden // heads)
    inner, vocabulary = int(config["intermediate_size"]), int(config["vocab_size"])
    query, key = heads * head_size, kv_heads * head_size
    layer = hidden * (2 * query + 2 * key) + 3 * hidden * inner + 2 * hidden
    has_bias = bool(config.get("attention_bias")) and kind != "mistral"
    layer += query + 2 * key if kind in QKV_BIAS or has_bias else 0
    layer += hidden if has_bias and kind not in QKV_BIAS else 0
    layer += 2 * inner + hidden if config.get("mlp_bias") and kind == "llama" else 0
    layer += 2 * head_size if kind == "qwen3" else 0
    is_tied = bool(config.get("tie_word_embeddings", False))
    return ModelSizes(
        kind=kind,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        feed_forward=inner,
        vocabulary=vocabulary,
        is_tied=is_tied,
        has_head_norms=kind == "qwen3",
        num_parameters=layers * layer + hidden + vocabulary * hidden * (1 if is_tied else 2),
        counted_by=FORMULA,
    )


def _by_library(folder: Path, overrides: Mapping[str, Any], *, trusts_code: bool) -> tuple[dict[str, Any], int]:
    """Return the filled configuration and the number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from trinity.common.models.model_config import read_model_config
    from trinity.common.models.vision import is_vision

    config = read_model_config(str(folder), overrides, trust_remote_code=trusts_code)
    kind: Any = AutoModelForImageTextToText if is_vision(config) else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config, trust_remote_code=trusts_code)
    return config.to_dict(), sum(parameter.numel() for parameter in model.parameters())


def _by_names(config: Mapping[str, Any], kind: str, *, count: int, how: str, folder: Path) -> ModelSizes:
    found = {name: _first(config, names) for name, names in _NAMES.items()}
    missing = [n for n in ("hidden_size", "num_hidden_layers", "vocab_size") if not found[n]]
    if missing:
        raise EnvironmentProblem(
            f"{folder / 'config.json'} does not say {', '.join(missing)} of the model of type {kind}", code="E3101"
        )
    hidden = found["hidden_size"] or 0
    heads = found["num_attention_heads"] or 1  # a family without attention has none
    inner = found["intermediate_size"] or 4 * hidden
    chosen, of_expert = _first(config, _EXPERTS_OF_A_TOKEN), _first(config, _OF_AN_EXPERT)
    if chosen:
        shared = _first(config, ("n_shared_experts", "num_shared_experts")) or 0
        inner = (chosen + shared) * (of_expert or inner)
    return ModelSizes(
        kind=kind,
        hidden=hidden,
        layers=found["num_hidden_layers"] or 1,
        heads=heads,
        kv_heads=found["num_key_value_heads"] or (1 if config.get("multi_query") else heads),
        head_size=found["head_dim"] or hidden // heads,
        feed_forward=inner,
        vocabulary=found["vocab_size"] or 0,
        is_tied=bool(config.get("tie_word_embeddings", True)),
        has_head_norms=False,
        num_parameters=count,
        counted_by=how,
    )


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first entry of these names that is a number."""
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
            value = max(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
