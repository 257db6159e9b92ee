"""What was said before an answer, as tokens; imports no torch."""

from __future__ import annotations

from typing import NamedTuple


class Said(NamedTuple):
    """The tokens of the beginning of a conversation.

    Attributes:
        messages: number of messages; the last one is an answer.
        tokens: prompt and response of the call that gave the answer.
        prompt_length: number of tokens of the prompt.
    """

    messages: int
    tokens: list[int]
    prompt_length: int
