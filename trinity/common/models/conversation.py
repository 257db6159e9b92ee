"""Conversations as lists of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def with_answer(messages: Sequence[dict[str, Any]], answer: str) -> list[dict[str, Any]]:
    """Return a conversation with its answer, or its begun reply continued."""
    own = [dict(message) for message in messages]
    if own and own[-1].get("role") == "assistant" and isinstance(own[-1].get("content"), str):
        own[-1]["content"] += answer
        return own
    return [*own, {"role": "assistant", "content": answer}]
