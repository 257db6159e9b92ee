"""Conversations as tokens with a mask of the assistant's part.

Dimension key: T = tokens of the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from trinity.common.models.answers import AnswerRenderer
from trinity.common.models.chat_template import render_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
_WAY_OUT = (
    "make an experience of each response, as model.chat returns them, or use a chat template that leaves earlier turns "
    "as they were"
)
Masked = tuple[Int[Tensor, "T"], Int[Tensor, "T"], int]


def masked_conversation(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    chat_template: str | None = None,
    enable_thinking: bool | None = None,
    stop_ids: Collection[int] = (),
) -> tuple[list[int], list[int], int]:
    """Return tokens, action mask and the index of the first action.

    The mask is 1 for tokens of the policy; the index is 0 without any. The tokens are prompts and answers through the
    end of the last response. The mask covers each response and the token that ends its turn, except what the template's
    `generation` tags leave out. An assistant message at the very beginning is not an answer. Without an answer the
    tokens are the whole conversation.

    Args:
        tokenizer: tokenizer with its chat template.
        messages: the conversation.
        tools: tool descriptions for the template.
        chat_template: replaces the tokenizer's.
        enable_thinking: passed to the template if not None.
        stop_ids: token ids that end a response; see `AnswerRenderer`.

    Raises:
        DataError: the conversation is not one sequence, because the template rewrites earlier turns (E4021).
        EnvironmentProblem: no chat template, or one that fails (E3107, E3109).
    """
    answers = AnswerRenderer(tokenizer, chat_template=chat_template, enable_thinking=enable_thinking, stop_ids=stop_ids)
    tokens, spans = answers.all(messages, tools, as_said=True, way_out=_WAY_OUT)
    options: dict[str, Any] = {
        "tools": tools,
        "chat_template": chat_template,
        "enable_thinking": enable_thinking,
    }
    if not spans:
        tokens, _ = render_chat(tokenizer, messages, is_prompt=False, **options)
    mask = [0] * len(tokens)
    for start, end in spans:
        mask[start:end] = [1] * (end - start)
    template = chat_template or tokenizer.chat_template
    if isinstance(template, str) and _GENERATION_TAG.search(template):
        whole, tagged = render_chat(tokenizer, messages, is_prompt=False, with_mask=True, **options)
        for place, (token, written, tag) in enumerate(zip(tokens, whole, tagged, strict=False)):
            if token != written:
                break
            mask[place] &= tag
    return tokens, mask, mask.index(1) if 1 in mask else 0


def tokenize_and_mask_messages_hf(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    chat_template: str | None = None,
    enable_thinking: bool | None = None,
) -> Masked:
    """Return tokens [T], mask [T] and prompt length by `generation` tags.

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
    """Return tokens [T], mask [T] and prompt length of a conversation.

    See `masked_conversation`.

    Raises:
        DataError: the conversation is not one sequence, because the template rewrites earlier turns (E4021).
    """
    tokens, mask, start = masked_conversation(
        tokenizer, messages, tools=tools, chat_template=chat_template, enable_thinking=enable_thinking
    )
    return torch.tensor(tokens), torch.tensor(mask), start


def get_action_mask_method(chat_template: str | None = None) -> Callable[..., Masked]:
    """Return a masking function: by `generation` tags or by assistant turns."""
    if chat_template is not None and _GENERATION_TAG.search(chat_template):
        return tokenize_and_mask_messages_hf
    return tokenize_and_mask_messages_default
