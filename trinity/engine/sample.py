"""Samples that an engine has drawn for a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trinity.common.experience import Experience
from trinity.common.models.watching import Top

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Sample:
    """One finished sample.

    Attributes:
        tokens: response tokens, the end-of-sequence token included.
        logprobs: log-probabilities of these tokens, float32.
        finish_reason: `stop` (stop token or stop string) or `length`.
        model_version: version of the weights that sampled its first token.
        stop_text: the stop string that ended it, if any.
        model_versions: version of each token, if the weights changed during the sample; `model_version` is then the
            first.
        top: the most probable tokens at each place, if they were asked for.
    """

    tokens: list[int]
    logprobs: Tensor
    finish_reason: FinishReason
    model_version: int
    stop_text: str | None = None
    model_versions: tuple[int, ...] | None = None
    top: tuple[Top, ...] = ()


def unanswered(tokens: list[int], prompt_text: str, *, model_version: int) -> Experience:
    """Return the experience of a cut prompt for which nothing is sampled.

    Its last token counts as the response, and is masked.
    """
    return Experience(
        tokens=torch.tensor(tokens),
        prompt_length=len(tokens) - 1,
        logprobs=torch.zeros(1),
        action_mask=torch.zeros(1, dtype=torch.bool),
        truncate_status="prompt_truncated",
        info={"model_version": model_version, "finish_reason": "prompt_truncated"},
        prompt_text=prompt_text,
        response_text="",
    )
