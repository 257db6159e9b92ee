"""How many tokens many texts have, as fast as a tokenizer can tell."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from trinity.launch.process import PARALLEL_TOKENIZERS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH = 1000
_COMPARED = 200
_MOST_KNOWN = 1_000_000
# Kinds of pre-tokenizers that know nothing of where in a text a part stands.
_WITHOUT_PLACE = frozenset({"ByteLevel", "Sequence", "Split", "Digits"})
# Of each class of characters that patterns of pre-tokenizers tell apart.
_PROBES = ("a", "A", "1", "Ⅷ", ".", "'", "'s", '"', "#", "_", "-", "$", ")", "数", "é", "e\u0301", "\u0301", "ب", "😀")


def token_counts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of each text, without those added around it.

    What stands between two special tokens is counted once, such as the system prompt of all rows, where the tokenizer
    gives a part alone the tokens that it has in the text. Of many texts each word is counted once in the same way.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        encoded = (tokenizer(batch, add_special_tokens=False)["input_ids"] for batch in _batches(texts))
        return [len(tokens) for batch in encoded for tokens in batch]
    # A call of the tokenizer takes twice as long: it makes lists of ids, masks and places.
    backend.no_truncation()
    backend.no_padding()
    marks = special_tokens_that_part(backend)
    parts = [marks.split(text) if marks is not None else [text] for text in texts]
    between = list(dict.fromkeys(part for each in parts for part in each[::2]))
    with _in_parallel():
        counts = dict(zip(between, _counts(between, backend), strict=True))
    return [sum(counts[part] for part in each[::2]) + len(each) // 2 for each in parts]


def length_ranges(lengths: Sequence[int], bins: int = 8) -> list[tuple[int, int, int]]:
    """Return first and last length, and number of texts, of equal ranges."""
    if not lengths:
        return []
    low, high = min(lengths), max(lengths)
    width = max(1, -(-(high - low + 1) // bins))
    counts = Counter((length - low) // width for length in lengths)
    return [(low + width * at, low + width * at + width - 1, counts[at]) for at in range(max(counts) + 1)]


def special_tokens_that_part(backend: Tokenizer) -> re.Pattern[str] | None:
    """Return the special tokens at which a text may be cut, as one group.

    None: nowhere. A tokenizer finds its special tokens first and looks at each part between them alone; one that works
    on bytes gives a part the same tokens wherever it stands, and others may begin a text otherwise than a part.
    """
    stated = _stated(backend.pre_tokenizer)
    kinds = {each["type"] for each in (stated, *stated.get("pretokenizers", ())) if each}
    names = [
        token.content
        for token in backend.get_added_tokens_decoder().values()
        if token.special and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
    ]
    if "ByteLevel" not in kinds or not kinds <= _WITHOUT_PLACE or not names:
        return None
    return re.compile(f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})")


def cuts_at_spaces(backend: Tokenizer) -> bool:
    """Return whether each word has the same tokens wherever it stands.

    A word begins with a single space between two characters that are none. Patterns of pre-tokenizers name classes of
    characters, so that one of each class on both sides of a space tells.
    """
    if _stated(backend.normalizer).get("type", "NFC") != "NFC":
        return False
    added = backend.get_added_tokens_decoder().values()
    if any(each.lstrip or each.rstrip or each.single_word or re.search(r"\s", each.content) for each in added):
        return False
    stated = _stated(backend.pre_tokenizer)
    kinds = {each["type"] for each in (stated, *stated.get("pretokenizers", ())) if each}
    if "ByteLevel" not in kinds or not kinds <= _WITHOUT_PLACE:
        return False
    pairs = itertools.product(_PROBES, repeat=2)
    return all(_is_cut(backend.pre_tokenizer, f"{before} {after}", len(before)) for before, after in pairs)


class WordCounter:
    """Counts the tokens of texts word by word, each word once.

    Args:
        backend: a tokenizer that cuts at spaces.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._first: dict[str, int] = {}
        self._later: dict[str, int] = {}
        self._joined: set[str] = set()

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text."""
        if len(self._first) + len(self._later) > _MOST_KNOWN:
            self._first.clear()
            self._later.clear()
        split = [text.split(" ") for text in texts]
        new = set().union(*split) - self._later.keys()
        self._joined |= {word for word in new if not word or word[0].isspace() or word[-1].isspace()}
        words = [self._parted(each) for each in split]
        self._learn(self._first, {first for first, _ in words}, before="")
        self._learn(self._later, set().union(*(later for _, later in words)), before=" ")
        return [self._first[first] + sum(map(self._later.__getitem__, later)) for first, later in words]

    def is_worth_it(self, texts: Sequence[str]) -> bool:
        """Return whether few words make up most of texts that were counted."""
        return 3 * (len(self._first) + len(self._later)) < sum(text.count(" ") for text in texts)

    def _parted(self, split: list[str]) -> tuple[str, list[str]]:
        """Return the first word, and the later ones without their space.

        What stands between spaces is joined where white space is beside one.
        """
        first, later = split[0], split[1:]
        if not later or (first and not first[-1].isspace() and self._joined.isdisjoint(later)):
            return first, later
        words = [first]
        for each in later:
            last = words[-1]
            if not last or not each or last[-1].isspace() or each[0].isspace():
                words[-1] = f"{last} {each}"
            else:
                words.append(each)
        return words[0], words[1:]

    def _learn(self, known: dict[str, int], words: set[str], *, before: str) -> None:
        new = list(words - known.keys())
        for batch in _batches(new):
            encodings = self._backend.encode_batch_fast([before + word for word in batch], add_special_tokens=False)
            known.update(zip(batch, map(len, encodings), strict=True))


def _counts(texts: Sequence[str], backend: Tokenizer) -> Iterator[int]:
    """Yield the tokens of each text, word by word where that is the same."""
    counter = _counter_of(texts, backend)
    for batch in _batches(texts):
        if counter is not None:
            yield from counter.counts(batch)
        else:
            yield from map(len, backend.encode_batch_fast(batch, add_special_tokens=False))


def _counter_of(texts: Sequence[str], backend: Tokenizer) -> WordCounter | None:
    """Return what counts by words; None if it is not worth it, or differs."""
    if len(texts) < 2 * _COMPARED or not cuts_at_spaces(backend):
        return None
    some = texts[:: len(texts) // _COMPARED]
    counter = WordCounter(backend)
    whole = list(map(len, backend.encode_batch_fast(some, add_special_tokens=False)))
    return counter if counter.counts(some) == whole and counter.is_worth_it(some) else None


def _is_cut(pre_tokenizer: Any, text: str, place: int) -> bool:
    """Return whether a word begins at a place of a text."""
    return any(begin == place for _, (begin, _) in pre_tokenizer.pre_tokenize_str(text))


def _stated(component: Any) -> dict[str, Any]:
    """Return what a component of a tokenizer states of itself."""
    return {} if component is None else dict(json.loads(component.__getstate__()))


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[begin : begin + _BATCH] for begin in range(0, len(texts), _BATCH))


@contextlib.contextmanager
def _in_parallel() -> Iterator[None]:
    """Let the tokenizer use all cores: a run keeps it to one thread.

    The library reads the variable at each call.
    """
    before = os.environ.get(PARALLEL_TOKENIZERS, "false")
    os.environ[PARALLEL_TOKENIZERS] = "true"
    try:
        yield
    finally:
        os.environ[PARALLEL_TOKENIZERS] = before
