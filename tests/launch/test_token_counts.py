"""Tokens of many texts are those that the tokenizer gives to each alone, whatever is counted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trinity.launch.trial.token_counts import special_tokens_that_part, token_counts

SPECIAL = ("<|end|>", "<|im_start|>", "<|im_start|>x", "<|im_end|>")
TEXTS = [
    "the cat sat on the mat  \n\n and then it's 12345 o'clock",
    "Der Ba\u0308r, the b\u00e4r, 数学 问题 和 答案",
    "  a\tb  \n c",
] * 3
SPLIT = Regex(
    r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bytes": lambda: (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "bytes with a space before": lambda: (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "bytes behind a pattern": lambda: (
        normalizers.NFC(),
        pre_tokenizers.Sequence([pre_tokenizers.Split(SPLIT, "isolated"), BYTES]),
    ),
    "bytes behind digits": lambda: (
        None,
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    ),
    "marks of a beginning": lambda: (None, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "marks of words": lambda: (normalizers.Prepend("▁"), pre_tokenizers.Metaspace(prepend_scheme="always")),
    "words": lambda: (None, pre_tokenizers.Whitespace()),
    "none": lambda: (None, None),
}
CUT = {"bytes", "bytes with a space before", "bytes behind a pattern", "bytes behind digits"}


def made(kind: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    normalizer, pre_tokenizer = KINDS[kind]()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", *SPECIAL], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("plain token", special=False), AddedToken("stripped", special=False, lstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<|left|>", special=True, lstrip=True)])
    return tokenizer


TOKENIZERS = {kind: made(kind) for kind in KINDS}
PIECES = st.sampled_from(
    [
        *SPECIAL,
        "<|left|>",
        "plain token",
        "stripped",
        "<|im_",
        "start|>",
        "the",
        " the",
        "  ",
        "\n",
        "\n\n ",
        "'s",
        "12345",
        "数学",
        "Ba\u0308r",
        "a",
        "",
    ]
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(st.lists(st.lists(PIECES | st.text(max_size=6), max_size=8).map("".join), min_size=1, max_size=4))
def test_counts_are_those_of_each_text_alone(kind: str, texts: list[str]) -> None:
    backend = TOKENIZERS[kind]
    whole = [len(backend.encode(text, add_special_tokens=False)) for text in texts]
    assert token_counts(texts, PreTrainedTokenizerFast(tokenizer_object=backend)) == whole


def test_only_tokenizers_of_bytes_are_cut() -> None:
    assert {kind for kind, backend in TOKENIZERS.items() if special_tokens_that_part(backend) is not None} == CUT
