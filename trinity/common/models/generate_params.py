"""Parameters of one generation call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trinity.common.errors import EngineError, NotAvailableError

if TYPE_CHECKING:
    from trinity.common.config.model import ModelConfig


MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True)
class GenerateParams:
    """How many samples to draw for a prompt, and how.

    Attributes:
        n: number of samples, >= 1.
        temperature: >= 0; 0 takes the most probable token.
        top_p: in (0, 1]; 1 is off.
        top_k: number of candidates; -1 or 0 is off.
        min_tokens: response tokens before which no stop token is drawn and no completed stop string counts.
        max_tokens: most response tokens; None: what the configuration and the sequence length leave.
        stop: strings that end a response; the response text is cut before them, the tokens are kept.
        seed: seed of the noise; None: the configuration's.
        logprobs: 0 or 1; the logprob of the sampled token is always returned.
        top_logprobs: number of most probable tokens that are given with each token, in [0, 20].
        ignore_eos: continue after the end-of-sequence token.
        sample_ids: identity of each sample, for the noise; None: the engine numbers them.
        participant: name of the caller, for the rounds of deterministic mode.
        enable_prompt_truncation: whether a prompt above `model.max_prompt_tokens` is cut; None: as configured.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: int | None = 0
    top_logprobs: int = 0
    ignore_eos: bool = False
    sample_ids: tuple[str, ...] | None = None
    participant: str | None = None
    enable_prompt_truncation: bool | None = None

    @classmethod
    def of(cls, model: ModelConfig, *, ignore_eos: bool) -> GenerateParams:
        """Return the parameters that a configuration sets."""
        return cls(
            temperature=model.temperature,
            top_p=model.top_p,
            top_k=model.top_k,
            min_tokens=model.min_response_tokens,
            max_tokens=model.max_response_tokens,
            logprobs=model.logprobs,
            ignore_eos=ignore_eos,
        )

    def override(self, arguments: Mapping[str, Any]) -> GenerateParams:
        """Return a copy with the caller's `arguments`.

        An argument that is None keeps the default.

        Raises:
            EngineError: unknown name or value out of range (E5602).
            NotAvailableError: more than the sampled token's logprob, or a repetition penalty.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        penalty = given.pop("repetition_penalty", 1.0)
        if penalty != 1.0:
            raise NotAvailableError(f"repetition_penalty of the torch engine must be 1.0, got {penalty}")
        unknown = sorted(given.keys() - self.__dataclass_fields__.keys())
        if unknown:
            raise EngineError(
                f"unknown generation argument {unknown[0]!r}; known: {', '.join(self.__dataclass_fields__)}",
                code="E5602",
            )
        if "stop" in given:
            given["stop"] = _texts(given["stop"])
        if "sample_ids" in given:
            given["sample_ids"] = tuple(given["sample_ids"])
        params = replace(self, **given)
        params.check()
        return params

    def check(self) -> None:
        """Verify all ranges.

        Raises:
            EngineError: the message names the argument, its range and the value (E5602).
            NotAvailableError: more than the sampled token's logprob.
        """
        if self.logprobs is not None and int(self.logprobs) > 1:
            raise NotAvailableError(
                f"logprobs above 1 (alternatives to the sampled token) are not available, got {self.logprobs}; use 0"
            )
        is_valid = {
            "n must be at least 1": self.n >= 1,
            "temperature must be at least 0": self.temperature >= 0,
            "top_p must be in (0, 1]": 0 < self.top_p <= 1,
            "top_k must be -1 (off) or at least 0": self.top_k >= -1,
            "min_tokens must be at least 0": self.min_tokens >= 0,
            "max_tokens must be at least 1": self.max_tokens is None or self.max_tokens >= 1,
            "sample_ids must have n entries": self.sample_ids is None or len(self.sample_ids) == self.n,
            f"top_logprobs must be in [0, {MAX_TOP_LOGPROBS}]": 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS,
            "stop must not hold an empty text": all(self.stop),
        }
        for rule, holds in is_valid.items():
            if not holds:
                name = rule.split(" ")[0]
                raise EngineError(f"{rule}, got {self.__dict__[name]!r} (n = {self.n})", code="E5602")


def _texts(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)
