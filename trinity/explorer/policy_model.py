"""A policy that is no model, at the interface of an engine.

Prompts are rendered and cut, answers become tokens and experiences as those of every engine that samples here.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.errors import EngineError
from trinity.common.models.chat_template import load_tokenizer
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.vocabulary import stop_token_ids
from trinity.engine.image_prompts import SeenPrompt
from trinity.engine.local_model import LocalModel
from trinity.engine.sample import Sample
from trinity.engine.settings import EngineSettings
from trinity.engine.stopping import completed_stop

LOGPROB = -1.0
"""Of every token: a policy has no probabilities."""


class Policy(Protocol):
    """What answers in place of a model."""

    def answer(self, sample_id: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Return the tokens of an answer, without the one that ends it.

        `sample_id` is `batch/task/run/turn`.
        """


class PolicyModel(LocalModel):
    """An `InferenceModel` whose answers are a policy's.

    An answer ends with the end-of-sequence token, a stop string, or the longest length.

    Args:
        settings: of the engine that it stands for.
        policy: what answers.
    """

    def __init__(self, settings: EngineSettings, policy: Policy) -> None:
        super().__init__(settings)
        self.policy = policy
        self._loaded: PreTrainedTokenizerBase | None = None
        self._ends: list[int] = []

    async def prepare(self) -> None:
        """Load the tokenizer; later calls do nothing.

        Raises:
            EnvironmentProblem: no tokenizer, or no template where one is set.
        """
        if self._loaded is None:
            self._loaded = await asyncio.to_thread(load_tokenizer, self.settings.model)
            self._ends = stop_token_ids(self.settings.model.model_path, self._loaded)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer with its chat template."""
        if self._loaded is None:
            raise EngineError("the engine is not prepared; await prepare() first", code="E5611")
        return self._loaded

    @property
    def model_version(self) -> int:
        """Version of the weights, of which there are none: 0."""
        return 0

    async def _sample(
        self, prompt: SeenPrompt, params: GenerateParams, *, keys: list[int], ids: tuple[str, ...]
    ) -> list[Sample]:
        await asyncio.sleep(0)  # others continue, as beside an engine
        return [self._one(sample_id, params) for sample_id in ids]

    def _one(self, sample_id: str, params: GenerateParams) -> Sample:
        assert params.max_tokens is not None, "it is set for every sample"
        # No engine continues after a token that ends an answer.
        said = [token for token in self.policy.answer(sample_id, self.tokenizer) if token not in self._ends]
        given = said + self._ends[:1]
        tokens: list[int] = []
        for token in given[: params.max_tokens]:
            tokens.append(token)
            stop = completed_stop(self.tokenizer, tokens, params.stop, min_tokens=params.min_tokens)
            if stop is not None:
                return self._ended(tokens, stop_text=stop)
        is_whole = len(tokens) == len(given) and bool(self._ends)
        return self._ended(tokens) if is_whole else self._ended(tokens, is_cut=True)

    def _ended(self, tokens: list[int], *, stop_text: str | None = None, is_cut: bool = False) -> Sample:
        logprobs = torch.full((len(tokens),), LOGPROB)
        return Sample(tokens, logprobs, "length" if is_cut else "stop", self.model_version, stop_text=stop_text)

    async def _score(self, tokens: list[int], temperature: float) -> Float[Tensor, "N"]:
        return torch.full((len(tokens) - 1,), LOGPROB)

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Refuse: there are no weights.

        Raises:
            EngineError: always (E5635).
        """
        raise EngineError("a policy that stands for a model has no weights", code="E5635")

    async def join_round(self, participant: str) -> None:
        """Do nothing: there are no rounds."""

    async def leave_round(self, participant: str) -> None:
        """Do nothing: there are no rounds."""

    async def waits_in_round(self, participant: str) -> bool:
        """Return false: there are no rounds."""
        return False

    async def stats(self) -> dict[str, float]:
        """Return nothing: no work is done."""
        return {}

    async def shutdown(self) -> None:
        """Do nothing: there is nothing to release."""


def plain_ids(tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    """Return the ids of all tokens that are text, ascending."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return sorted(set(tokenizer.get_vocab().values()) - special)
