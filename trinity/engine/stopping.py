"""Stop strings: which one a response ends with, and where it begins.

As in vLLM, a stop string counts if a token after the first `min_tokens` completes it. One completed earlier never ends
the response. Of several stop strings, the one that ends first counts, then the one listed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, NamedTuple

from trinity.common.models.chat_template import decode_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from trinity.common.experience import Experience


class Stop(NamedTuple):
    """A stop string in a text.

    Attributes:
        text: the stop string.
        start: number of characters before it.
    """

    text: str
    start: int


def stop_at_end(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], stops: Sequence[str]) -> Stop | None:
    """Return the stop string that the last of `tokens` completes, or None.

    `start` counts characters of the text without special tokens.
    """
    text = decode_tokens(tokenizer, tokens, skip_special=True)
    if not any(stop in text for stop in stops):
        return None
    # An incomplete character decodes to a replacement mark, which the complete one replaces.
    known = len(commonprefix([decode_tokens(tokenizer, tokens[:-1], skip_special=True), text]))
    found = [Stop(stop, text.find(stop, max(0, known + 1 - len(stop)))) for stop in stops]
    return min((stop for stop in found if stop.start >= 0), key=lambda stop: stop.start + len(stop.text), default=None)


def text_of(tokenizer: PreTrainedTokenizerBase, experience: Experience) -> str:
    """Return the text of a response, special tokens included, before its end."""
    response, stop = experience.tokens[experience.prompt_length :].tolist(), experience.info.get("stop_text")
    if stop is not None:
        return text_before(tokenizer, response, stop)
    is_ended = experience.info["finish_reason"] == "stop"
    return decode_tokens(tokenizer, response[:-1] if is_ended else response)


def text_before(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], stop_text: str) -> str:
    """Return the text, special tokens included, before a stop string.

    The last token completes the stop string, in which special tokens do not count.
    """
    stop = stop_at_end(tokenizer, tokens, [stop_text])
    assert stop is not None, "the last token completed the stop string"
    plain, count = decode_tokens(tokenizer, tokens, skip_special=True)[: stop.start], len(tokens)
    while not plain.startswith(said := decode_tokens(tokenizer, tokens[:count], skip_special=True)):
        count -= 1  # this token is a part of the stop string, if not of the text before it, too
    return decode_tokens(tokenizer, tokens[:count]) + plain[len(said) :]


def completed_stop(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], stops: Sequence[str], *, min_tokens: int
) -> str | None:
    """Return the stop string that a response's last token completes, or None.

    None also if that token is among the first `min_tokens`.

    Args:
        tokenizer: decodes the tokens.
        tokens: the response so far, or the end of it.
        stops: stop strings.
        min_tokens: number of the given tokens that may not complete one.
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
