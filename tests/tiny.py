"""Tiny Hugging Face folders made in the tests: a character tokenizer with a chat template, and random models.

The chat template writes the conversation without any mark-up, so that a user message of `12+34=` is the
prompt `12+34=`, six tokens, and an assistant message is its text followed by `<eos>`.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

PAD = "<pad>"
EOS = "<eos>"
UNK = "<unk>"
CHARACTERS = "0123456789+-*/=#,.:;?<>[]() \n" + string.ascii_letters
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
)


def tiny_tokenizer(
    path: Path | str, *, characters: str = CHARACTERS, chat_template: str | None = CHAT_TEMPLATE
) -> PreTrainedTokenizerFast:
    """Write a character tokenizer to the folder `path` and return it.

    The ids are `<pad>` 0, `<eos>` 1, `<unk>` 2, then one a character; padding is on the left.
    """
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNK, *characters])}
    core = Tokenizer(WordLevel(vocabulary, unk_token=UNK))
    core.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(path)
    return tokenizer


def tiny_config(family: str = "llama", *, vocab_size: int, **dims: Any) -> PreTrainedConfig:
    """Return the configuration of a model of about 0.05 M parameters; `dims` overrides Hugging Face's names."""
    if family == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "attn_pdrop": 0.0, "embd_pdrop": 0.0}
        return GPT2Config(
            vocab_size=vocab_size,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
            **{"resid_pdrop": 0.0} | sizes | dims,
        )
    kinds = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    return kinds[family](vocab_size=vocab_size, bos_token_id=None, eos_token_id=1, pad_token_id=0, **sizes | dims)


def spread(model: PreTrainedModel, scale: float) -> None:
    """Enlarge weights, and let no norm or bias be a plain one or zero."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(scale)
        else:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)


def tiny_model(
    path: Path | str,
    family: str = "llama",
    seed: int = 0,
    *,
    scale: float = 4.0,
    characters: str = CHARACTERS,
    chat_template: str | None = CHAT_TEMPLATE,
    **dims: Any,
) -> PreTrainedModel:
    """Write a model with random float32 weights and its tokenizer to the folder `path`; return the model.

    Args:
        path: the folder, made if absent.
        family: llama, qwen2, qwen3 or gpt2.
        seed: of the weights; the caller's random generator is left alone.
        scale: factor on the usual initial weights, so that the next-token distribution is far from uniform.
        characters: the tokenizer's characters.
        chat_template: the tokenizer's; None leaves it without one.
        dims: sizes under the names of the family's Hugging Face configuration.
    """
    tokenizer = tiny_tokenizer(path, characters=characters, chat_template=chat_template)
    config = tiny_config(family, **{"vocab_size": len(tokenizer)} | dims)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        spread(model, scale)
    model.eval()
    model.save_pretrained(path)
    return model
