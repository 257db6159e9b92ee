"""Conversations as tokens with a mask of the assistant's part.

Dimension key: T = tokens of the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.models.chat_template import render_chat

_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
Masked = tuple[Int[Tensor, "T"], Int[Tensor, "T"], int]


def masked_conversation(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    chat_template: str | None = None,
    enable_thinking: bool | None = None,
) -> tuple[list[int], list[int], int]:
    """Return tokens, mask (1 = written by the assistant) and the place of the first such token (0 without any).

    By the template's `generation` tags if it has them, else by rendering growing parts of the conversation.
    """
    template = chat_template or tokenizer.chat_template
    has_tags = isinstance(template, str) and bool(_GENERATION_TAG.search(template))
    options: dict[str, Any] = {
        "tools": tools,
        "chat_template": chat_template,
        "enable_thinking": enable_thinking,
    }
    if has_tags:
        tokens, mask = render_chat(tokenizer, messages, is_prompt=False, with_mask=True, **options)
    else:
        tokens, mask = _by_parts(tokenizer, messages, options)
    return tokens, mask, mask.index(1) if 1 in mask else 0


def _by_parts(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], options: dict[str, Any]
) -> tuple[list[int], list[int]]:
    tokens, _ = render_chat(tokenizer, messages, is_prompt=False, **options)
    mask = [0] * len(tokens)
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        start = len(render_chat(tokenizer, messages[:index], is_prompt=True, **options)[0]) if index else 0
        end = len(render_chat(tokenizer, messages[: index + 1], is_prompt=False, **options)[0])
        mask[start:end] = [1] * (min(end, len(tokens)) - start)
    return tokens, mask


def tokenize_and_mask_messages_hf(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    chat_template: str | None = None,
    enable_thinking: bool | None = None,
) -> Masked:
    """Return tokens [T], mask [T] and prompt length by the template's `generation` tags.

    The mask is all 0 if the template has no such tags.
    """
    tokens, mask = render_chat(
        tokenizer,
        messages,
        tools=tools,
        is_prompt=False,
        enable_thinking=enable_thinking,
        chat_template=chat_template,
        with_mask=True,
    )
    return torch.tensor(tokens), torch.tensor(mask), mask.index(1) if 1 in mask else 0


def tokenize_and_mask_messages_default(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    chat_template: str | None = None,
    enable_thinking: bool | None = None,
) -> Masked:
    """Return tokens [T], mask [T] and prompt length by rendering the conversation up to each assistant message.

    An assistant message is what follows the opening that the template writes for it, up to the message's end.
    """
    options = {"tools": tools, "chat_template": chat_template, "enable_thinking": enable_thinking}
    tokens, mask = _by_parts(tokenizer, messages, options)
    return torch.tensor(tokens), torch.tensor(mask), mask.index(1) if 1 in mask else 0


def get_action_mask_method(chat_template: str | None = None) -> Callable[..., Masked]:
    """Return the masking function for a template: by its `generation` tags if it has them, else by parts."""
    if chat_template is not None and _GENERATION_TAG.search(chat_template):
        return tokenize_and_mask_messages_hf
    return tokenize_and_mask_messages_default
