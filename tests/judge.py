"""A model that answers every conversation with a score, in the form that Data-Juicer's filters ask for.

Its next token follows from the last one alone: after anything it says one of three verdicts, each a token and as likely
as the others, and after a verdict it ends.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

DIMENSIONS = (
    "accuracy", "grammar", "informativeness", "coherence",
    "linguistic_complexity", "conceptual_depth", "prior_knowledge", "step_complexity", "ambiguity",
)  # fmt: skip
MARKS = (2, 3, 5)
SCORES = tuple(mark / 5 for mark in MARKS)
HIDDEN, SURE = 64, 5.0


def write_judge(path: Path) -> None:
    """Write the folder of the model."""
    verdicts = [json.dumps({"dimension_scores": dict.fromkeys(DIMENSIONS, mark)}) for mark in MARKS]
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *verdicts])}
    core = Tokenizer(WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = WhitespaceSplit(), Fuse()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=4096, **special)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    tokenizer.save_pretrained(path)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=HIDDEN, intermediate_size=HIDDEN, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, bos_token_id=None, eos_token_id=1,
        pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    said = list(range(3, len(words)))
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.zero_()[:3, 0] = 1.0
        model.model.embed_tokens.weight[said, 1] = 1.0
        model.lm_head.weight.zero_()[said, 0] = SURE
        model.lm_head.weight[1, 1] = SURE
    model.save_pretrained(path)
