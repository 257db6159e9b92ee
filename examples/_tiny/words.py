"""A tiny Llama with a vocabulary of its own, for tasks whose texts have few words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<eos>", "<unk>")


def write_model(folder: Path, words: Sequence[str], template: str, *, max_tokens: int, seed: int) -> None:
    """Write random weights, 0.4 million, and a tokenizer.

    Args:
        folder: of the model.
        words: texts that are one token each; a character outside of them is unknown.
        template: chat template.
        max_tokens: longest conversation.
        seed: of the weights.
    """
    vocabulary = [*SPECIAL, *words]
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="<unk>"))
    parts = "|".join(re.escape(word) for word in sorted(vocabulary, key=len, reverse=True))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(f"{parts}|."), behavior="isolated")
    core.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, **names)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=len(vocabulary), max_position_embeddings=max_tokens, **sizes, **ends)
    LlamaForCausalLM(config).save_pretrained(folder)
