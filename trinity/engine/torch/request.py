"""Requests in the engine: one prompt, its samples and its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from trinity.common.images.picture import Picture
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.watching import Listener, Top
from trinity.engine.sample import Sample
from trinity.engine.torch.decoder import Prompts


@dataclass(eq=False)
class Request:
    """One prompt and its `params.n` samples.

    Attributes:
        prompt: prompt tokens.
        params: with `max_tokens` set to what the sequence length leaves, at least 1.
        keys: noise key of each sample.
        ids: identity of each sample, which orders the rows of a deterministic round.
        loop: the event loop of the caller.
        future: gets the list of samples.
        listener: called with each token that is read; None: there is no listener.
        prefill: version of the weights, logits [V] and cache of the prompt, while rows of it wait for a slot.
        num_admitted: rows that have got a slot.
        samples: finished samples by index.
        is_cancelled: the caller no longer waits.
        pictures: the images of the prompt, whose tokens in it are negative.
    """

    prompt: list[int]
    params: GenerateParams
    keys: list[int]
    ids: tuple[str, ...]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Sample]]
    listener: Listener | None = None
    prefill: tuple[int, Tensor, Prompts] | None = None
    num_admitted: int = 0
    samples: dict[int, Sample] = field(default_factory=dict)
    is_cancelled: bool = False
    pictures: tuple[Picture, ...] = ()

    def rows(self) -> list[RunningRow]:
        """Return one row per sample."""
        return [RunningRow(self, index) for index in range(self.params.n)]

    def finish(self, index: int, sample: Sample) -> None:
        """Store a finished sample; the last one completes the future."""
        self.samples[index] = sample
        if len(self.samples) == self.params.n:
            ordered = [self.samples[number] for number in range(self.params.n)]
            deliver(self.loop, self.future, lambda: self.future.set_result(ordered))

    def fail(self, error: BaseException) -> None:
        """Complete the future with an error."""
        deliver(self.loop, self.future, lambda: self.future.set_exception(error))

    @property
    def is_finished(self) -> bool:
        """Whether all samples are finished."""
        return len(self.samples) == self.params.n


@dataclass(eq=False)
class RunningRow:
    """One sample of a request, waiting for a slot or in one.

    Attributes:
        request: its request.
        index: index of the sample in the request.
        model_version: version of the weights that sampled its first token.
        switches: each newer version that continued it, with the number of response tokens before.
        slot: its slot; None before and after.
        num_drawn: tokens drawn, including those that the device has not returned yet.
        tokens: response tokens so far.
        logprobs: log-probabilities of these tokens.
        top: most probable tokens at each place, if asked for.
    """

    request: Request
    index: int
    model_version: int = -1
    switches: list[tuple[int, int]] = field(default_factory=list)
    slot: int | None = None
    num_drawn: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)

    @property
    def max_tokens(self) -> int:
        """Most response tokens."""
        return self.request.params.max_tokens or 1

    def model_versions(self, num_tokens: int) -> tuple[int, ...] | None:
        """Return each response token's version; None if one version made all."""
        if not self.switches:
            return None
        starts = [(self.model_version, 0), *self.switches]
        ends = [start for _, start in self.switches] + [num_tokens]
        parts = [[version] * (end - start) for (version, start), end in zip(starts, ends, strict=True)]
        return tuple(version for part in parts for version in part)

    @property
    def sample_id(self) -> str:
        """Identity of the sample."""
        return self.request.ids[self.index]


def deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future, action: Callable[[], None]) -> None:
    """Run `action` on the caller's event loop unless its future is done.

    A closed loop is ignored.
    """

    def act() -> None:
        if not future.done():
            action()

    try:
        loop.call_soon_threadsafe(act)
    except RuntimeError:
        if not loop.is_closed():
            raise
