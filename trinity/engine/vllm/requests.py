"""vLLM's outputs as samples, with stop strings and token versions."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from trinity.common.errors import EngineError
from trinity.common.models.generate_params import GenerateParams
from trinity.engine.sample import FinishReason, Sample
from trinity.engine.stopping import completed_stop

Scored = tuple[Sample, list[float]]
Texts = tuple[str, ...]


class RequestProgress:
    """Versions of the weights that made a request's tokens.

    Args:
        version: version of the weights at its start.
    """

    def __init__(self, version: int) -> None:
        self.marks = [(0, version)]

    def change(self, position: int, version: int) -> None:
        """Record that `version` makes the tokens from `position` on."""
        position = max(position, self.marks[-1][0])
        if position == self.marks[-1][0]:
            self.marks.pop()
        self.marks.append((position, version))

    def versions(self, num_tokens: int) -> list[int]:
        """Return the version of each token."""
        versions: list[int] = []
        for position, version in self.marks:
            del versions[position:]
            versions += [version] * (num_tokens - len(versions))
        return versions


def stops_of(params: GenerateParams) -> tuple[str, ...]:
    """Return the stop strings for vLLM; none with a minimum, see `sample_of`."""
    return () if params.min_tokens > 1 else params.stop


def is_early(sample: Sample, params: GenerateParams) -> bool:
    """Return whether a stop string that does not count ended a response.

    vLLM is not told `min_tokens`, so a stop string may end a response too early.
    """
    return sample.stop_text is not None and len(sample.tokens) <= params.min_tokens


def sample_of(
    output: Any,
    params: GenerateParams,
    *,
    tokenizer: PreTrainedTokenizerBase,
    progress: RequestProgress,
    has_stops: bool,
) -> Scored:
    """Return the sample of a final output, and the prompt's logprobs.

    The output has one completion; the first logprob of the prompt is 0. If vLLM did not look for the stop strings
    (`has_stops` is false), the response is cut here.

    Raises:
        EngineError: vLLM gave up the request (E5662), or the logits are not finite (E5605).
    """
    completion = output.outputs[0]
    if completion.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended a request with {completion.finish_reason!r}", code="E5662")
    tokens = [int(token) for token in completion.token_ids]
    logprobs = torch.tensor([entry[token].logprob for entry, token in zip(completion.logprobs, tokens, strict=True)])
    if not bool(torch.isfinite(logprobs).all()):
        raise EngineError(
            "the model's logits are not finite; its weights hold NaN or infinity (see actor/grad_norm of the "
            "training steps before)",
            code="E5605",
        )
    reason: FinishReason = completion.finish_reason
    stop_text = completion.stop_reason if isinstance(completion.stop_reason, str) else None
    if params.stop and not has_stops:
        length, stop_text = _cut(tokens, params, tokenizer)
        if stop_text is not None:
            tokens, logprobs, reason = tokens[:length], logprobs[:length], "stop"
    versions = progress.versions(len(tokens))
    mixed = tuple(versions) if len(set(versions)) > 1 else None
    prompt = [0.0, *_prompt_logprobs(output)]
    return Sample(tokens, logprobs, reason, versions[0], stop_text, mixed), prompt


def _prompt_logprobs(output: Any) -> list[float]:
    if not output.prompt_logprobs:
        return []
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return [entry[token].logprob for token, entry in pairs]


def _cut(tokens: list[int], params: GenerateParams, tokenizer: PreTrainedTokenizerBase) -> tuple[int, str | None]:
    """Return a response's length and the stop string that counts, or None."""
    for length in range(params.min_tokens + 1, len(tokens) + 1):
        found = completed_stop(tokenizer, tokens[:length], params.stop, min_tokens=params.min_tokens)
        if found is not None:
            return length, found
    return len(tokens), None
