"""Tokens of many texts are those that the tokenizer gives to each alone, whatever is counted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trinity.launch.trial.token_counts import WordCounter, cuts_at_spaces, special_tokens_that_part, token_counts

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


def made(kind: str, *, is_plain: bool = False) -> Tokenizer:
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
    if is_plain:
        tokenizer.add_tokens([AddedToken("<tool>", special=False)])
        return tokenizer
    tokenizer.add_tokens([AddedToken("plain token", special=False), AddedToken("stripped", special=False, lstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<|left|>", special=True, lstrip=True)])
    return tokenizer


TOKENIZERS = {kind: made(kind) for kind in KINDS}
PLAIN = {kind: made(kind, is_plain=True) for kind in KINDS}
WORDS = ("bytes", "bytes with a space before", "bytes behind a pattern")
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
@settings(max_examples=120)
@given(st.lists(st.lists(PIECES | st.text(max_size=6), max_size=8).map("".join), min_size=1, max_size=4))
def test_counts_are_those_of_each_text_alone(kind: str, texts: list[str]) -> None:
    backend = TOKENIZERS[kind]
    whole = [len(backend.encode(text, add_special_tokens=False)) for text in texts]
    assert token_counts(texts, PreTrainedTokenizerFast(tokenizer_object=backend)) == whole


def test_only_tokenizers_of_bytes_are_cut() -> None:
    assert {kind for kind, backend in TOKENIZERS.items() if special_tokens_that_part(backend) is not None} == CUT


def test_only_tokenizers_that_begin_words_at_spaces_are_counted_by_words() -> None:
    assert {kind for kind, backend in PLAIN.items() if cuts_at_spaces(backend)} == set(WORDS)
    assert not any(map(cuts_at_spaces, TOKENIZERS.values())), "one of their tokens takes the space before it"
    crossing = PLAIN["bytes behind a pattern"].__class__.from_str(PLAIN["bytes behind a pattern"].to_str())
    crossing.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"[a-z ]+|[^a-z ]+"), "isolated"), BYTES]
    )
    assert not cuts_at_spaces(crossing)


@pytest.mark.parametrize("kind", WORDS)
@settings(max_examples=200)
@given(
    st.lists(
        st.lists(PIECES | st.just(" ") | st.just("<tool>") | st.text(max_size=6), max_size=12).map("".join),
        min_size=1,
        max_size=4,
    )
)
def test_counts_of_words_are_those_of_each_text(kind: str, texts: list[str]) -> None:
    backend = PLAIN[kind]
    whole = [len(backend.encode(text, add_special_tokens=False)) for text in texts]
    assert WordCounter(backend).counts(texts) == whole


def test_many_texts_are_counted_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = PLAIN["bytes behind a pattern"]
    asked: list[int] = []
    learn = WordCounter._learn

    def learning(self: WordCounter, known: dict[str, int], words: set[str], *, before: str) -> None:
        asked.append(len(words - known.keys()))
        learn(self, known, words, before=before)

    monkeypatch.setattr(WordCounter, "_learn", learning)
    texts = [f"{number} times the cat sat on the mat  \n and {number % 7} it's 数学" for number in range(900)]
    whole = [len(backend.encode(text, add_special_tokens=False)) for text in texts]
    assert token_counts(texts, PreTrainedTokenizerFast(tokenizer_object=backend)) == whole
    assert 900 < sum(asked) < 1000, "the words that begin the texts, and few others"
