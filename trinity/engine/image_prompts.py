"""Prompts with images, from messages to tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from trinity.common.errors import EngineError
from trinity.common.images.picture import Picture, plain, shortened
from trinity.common.images.prepared import PreparedImages
from trinity.common.models.chat_template import render_chat
from trinity.common.models.families import VISION


@dataclass(frozen=True)
class SeenPrompt:
    """A prompt and its images.

    Attributes:
        keys: its tokens, negative ones for images (`Picture.tokens`).
        pictures: its images in order.
        image_token: the token that stands for a part of an image.
    """

    keys: list[int]
    pictures: tuple[Picture, ...] = ()
    image_token: int = 0
    tokens: list[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", plain(self.keys, self.image_token) if self.pictures else self.keys)

    def cut(self, limit: int, *, side: str) -> SeenPrompt:
        """Return the prompt cut to `limit` tokens.

        Those kept are its last (`left`), its first (`right`), or both ends (`middle`), of which the last may have one
        more.

        Raises:
            EngineError: the prompt has images, which a cut would go through (E5643).
        """
        if self.pictures:
            raise EngineError(
                f"a prompt with images has {len(self.tokens)} tokens, and `model.prompt_truncation: {side}` would cut "
                f"through them at {limit}; raise model.max_prompt_tokens",
                code="E5643",
            )
        first = {"left": 0, "right": limit, "middle": limit // 2}[side]
        last = limit - first
        return SeenPrompt(self.keys[:first] + (self.keys[-last:] if last else []))

    def written(self) -> list[int]:
        """Return the tokens of the prompt's text, with one for each image."""
        return shortened(self.keys, self.image_token) if self.pictures else self.keys


@dataclass(frozen=True)
class ImagePrompts(PreparedImages):
    """Renders conversations with images for a model."""

    async def render(
        self,
        tokenizer: PreTrainedTokenizerBase,
        messages: Sequence[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        **options: Any,
    ) -> SeenPrompt:
        """Return the prompt of a conversation, images where the template says.

        Raises:
            DataError: an image cannot be read or used (E4031), or the template writes another number of image tokens
                than there are images (E4032).
            EnvironmentProblem: no chat template, or it fails.
        """
        written, pictures = await asyncio.to_thread(self.split, messages)
        tokens, _ = render_chat(tokenizer, written, tools=tools, **options)
        return SeenPrompt(self.expanded(tokens, pictures), tuple(pictures), self.image_token)


def required(images: ImagePrompts | None, model_path: str) -> ImagePrompts:
    """Return `images`; raise if there are none.

    Raises:
        EngineError: the model reads none (E5613).
    """
    if images is None:
        raise EngineError(
            f"the model {model_path} is given an image, and reads none here; the torch and the vLLM engine read images "
            "with explorer.rollout_model.enable_multimodal: true and a model of one of these families: "
            f"{', '.join(VISION)}",
            code="E5613",
        )
    return images
