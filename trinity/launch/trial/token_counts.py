"""How many tokens many texts have, as fast as a tokenizer can tell."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from trinity.launch.process import PARALLEL_TOKENIZERS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH = 1000
# Kinds of pre-tokenizers that know nothing of where in a text a part stands.
_WITHOUT_PLACE = frozenset({"ByteLevel", "Sequence", "Split", "Digits"})


def token_counts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of each text, without those added around it.

    What stands between two special tokens is counted once, such as the system prompt of all rows, where the tokenizer
    gives a part alone the tokens that it has in the text.
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
        encodings = [backend.encode_batch_fast(batch, add_special_tokens=False) for batch in _batches(between)]
    counts = dict(zip(between, (len(one) for each in encodings for one in each), strict=True))
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
    stated = json.loads(backend.to_str())["pre_tokenizer"] or {}
    kinds = {each["type"] for each in (stated, *stated.get("pretokenizers", ())) if each}
    names = [
        token.content
        for token in backend.get_added_tokens_decoder().values()
        if token.special and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
    ]
    if "ByteLevel" not in kinds or not kinds <= _WITHOUT_PLACE or not names:
        return None
    return re.compile(f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})")


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
