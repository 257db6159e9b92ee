"""Stop strings: which one a response ends with, and where it begins.

As in vLLM a stop string counts if a token after the first `min_tokens` completes it. One that is complete before does
not end the response, then or later. Of several the one that ends first counts, then the one that was named first.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from trinity.common.models.chat_template import decode_tokens


class Stop(NamedTuple):
    """A stop string in a text.

    Attributes:
        text: the stop string.
        start: characters before it.
    """

    text: str
    start: int


def stop_at_end(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], stops: Sequence[str]) -> Stop | None:
    """Return the stop string that the last of `tokens` completes; `start` counts in the text without special tokens."""
    text = decode_tokens(tokenizer, tokens, skip_special=True)
    if not any(stop in text for stop in stops):
        return None
    # Half a character is written as a mark of its own, which the whole one replaces.
    known = len(commonprefix([decode_tokens(tokenizer, tokens[:-1], skip_special=True), text]))
    found = [Stop(stop, text.find(stop, max(0, known + 1 - len(stop)))) for stop in stops]
    return min((stop for stop in found if stop.start >= 0), key=lambda stop: stop.start + len(stop.text), default=None)


def completed_stop(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], stops: Sequence[str], *, min_tokens: int
) -> str | None:
    """Return the stop string that the last token of a response completes, None if none or among the first tokens.

    Args:
        tokenizer: decodes the tokens.
        tokens: the response so far, or the end of it.
        stops: stop strings.
        min_tokens: of the tokens given, how many come before the first that may complete one.
    """
    if not stops or len(tokens) <= min_tokens:
        return None
    # A character takes at most four byte tokens; special tokens have none.
    longest = max(len(stop) for stop in stops)
    reach = 4 * longest + 8
    while reach < len(tokens) and len(decode_tokens(tokenizer, tokens[-reach:-1], skip_special=True)) < longest:
        reach *= 2
    found = stop_at_end(tokenizer, tokens[-reach:], stops)
    return None if found is None else found.text
