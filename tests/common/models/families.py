"""Eight families of chat models: their templates, and tiny tokenizers that have their special tokens.

A conversation is written down here as its text, with `«` and `»` around what the policy said: each answer and the token
that ends its turn.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "chat_templates"
_TEXT = ["the sum of one and two is three and the size is größe in 数学", "system user assistant model tool think"] * 4
# Special tokens, of which the first ends a text; then those that are added, but not special.
_TOKENS: dict[str, tuple[list[str], list[str]]] = {
    "qwen2_5": (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<tool_call>", "</tool_call>"]),
    "qwen3": (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>", "<tool_call>", "</tool_call>"]),
    "llama3_1": (["<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"], []),
    "mistral": (["</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"], []),
    "gemma3": (["<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"], []),
    "phi3_5": (["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], []),
    "deepseek_r1": (
        ["<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"],
        ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"],
    ),
    "glm4_5": (
        ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
        ["<think>", "</think>", "<tool_call>", "</tool_call>"],
    ),
}
FAMILIES = tuple(_TOKENS)
_BOS = {"llama3_1": 1, "mistral": 1, "gemma3": 1, "deepseek_r1": 1}


@cache
def family_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with the special tokens and the template of a family; do not change it."""
    special, plain = _TOKENS[family]
    core = Tokenizer(BPE())
    core.pre_tokenizer = ByteLevel(add_prefix_space=False)
    core.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=340, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    core.train_from_iterator(_TEXT, trainer)
    # Phi's special tokens take the blanks behind them with them.
    core.add_special_tokens([AddedToken(text, special=True, rstrip=family == "phi3_5") for text in special])
    core.add_tokens([AddedToken(text, normalized=False) for text in plain])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=special[0], clean_up_tokenization_spaces=False)
    if family in _BOS:
        tokenizer.bos_token = special[_BOS[family]]
    tokenizer.chat_template = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
    return tokenizer


def stop_ids(family: str) -> set[int]:
    """Return what the family's generation configuration stops at: for GLM the headers of what may follow, too."""
    tokenizer = family_tokenizer(family)
    further = {"glm4_5": ["<|user|>", "<|observation|>"], "gemma3": ["<end_of_turn>"], "phi3_5": ["<|end|>"]}
    texts = [str(tokenizer.eos_token), *further.get(family, [])]
    return {int(tokenizer.convert_tokens_to_ids(text)) for text in texts}


def marked_tokens(family: str, marked: str) -> tuple[list[int], list[int]]:
    """Return tokens and mask of a text in which `«` and `»` are around what was said."""
    tokenizer = family_tokenizer(family)
    text = marked.replace("«", "").replace("»", "")
    said: list[tuple[int, int]] = []
    place = 0
    for index, part in enumerate(marked.replace("»", "«").split("«")):
        if index % 2:
            said.append((place, place + len(part)))
        place += len(part)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [int(any(start <= begin < end for start, end in said)) for begin, _ in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), mask
