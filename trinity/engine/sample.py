"""Samples that an engine has drawn for a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

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
