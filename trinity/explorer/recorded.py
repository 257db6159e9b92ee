"""An engine whose calls are kept, with what they took.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from trinity.common.experience import Experience
from trinity.common.models.inference_model import InferenceModel, Messages
from trinity.common.weights import Ticket


@dataclass(frozen=True)
class RecordedCall:
    """One call of a model.

    Attributes:
        sample_ids: identities of the samples, `batch/task/run/turn`; empty for a call outside of a rollout.
        experiences: what the engine returned, as it was then: a workflow may change it afterwards.
        seconds: how long it took.
    """

    sample_ids: tuple[str, ...]
    experiences: tuple[Experience, ...]
    seconds: float

    def is_of(self, task: int, run: int) -> bool:
        """Return whether a sample of it belongs to a run."""
        return any(sample.split("/")[1:3] == [str(task), str(run)] for sample in self.sample_ids)


class RecordedModel:
    """Passes calls on to an engine and keeps them; see `InferenceModel`.

    Args:
        model: the engine.
    """

    def __init__(self, model: InferenceModel) -> None:
        self.model = model
        self.calls: list[RecordedCall] = []

    @property
    def model_version(self) -> int:
        """Version of the weights that the next response will use."""
        return self.model.model_version

    async def prepare(self) -> None:
        """Load model and tokenizer."""
        await self.model.prepare()

    async def generate(self, prompt: str | Sequence[int], **arguments: Any) -> list[Experience]:
        """Return `n` responses to one prompt."""
        began = time.perf_counter()
        return self._keep(await self.model.generate(prompt, **arguments), arguments, began)

    async def chat(
        self, messages: Messages, *, tools: list[dict[str, Any]] | None = None, **arguments: Any
    ) -> list[Experience]:
        """Return `n` responses to a conversation."""
        began = time.perf_counter()
        return self._keep(await self.model.chat(messages, tools=tools, **arguments), arguments, began)

    async def logprobs(self, tokens: Sequence[int], *, temperature: float = 1.0) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first."""
        return await self.model.logprobs(tokens, temperature=temperature)

    async def convert_messages_to_experience(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None = None,
        temperature: float | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Experience:
        """Return a conversation as one experience."""
        return await self.model.convert_messages_to_experience(messages, tools, temperature, template_args)

    async def get_message_token_len(self, messages: Messages, template_args: Mapping[str, Any] | None = None) -> int:
        """Return the number of tokens of a conversation as a prompt."""
        return await self.model.get_message_token_len(messages, template_args)

    def vocabulary(self) -> Mapping[str, int]:
        """Return the tokenizer's ids by token."""
        return self.model.vocabulary()

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Copy weights in."""
        await self.model.update_weights(weights, version=version)

    async def pull(self, ticket: Ticket) -> None:
        """Fetch a ticket's weights."""
        await self.model.pull(ticket)

    async def join_round(self, participant: str) -> None:
        """Let every round wait for `participant`."""
        await self.model.join_round(participant)

    async def leave_round(self, participant: str) -> None:
        """Do not let rounds wait for `participant`."""
        await self.model.leave_round(participant)

    async def waits_in_round(self, participant: str) -> bool:
        """Return whether `participant` has an open request in a round."""
        return await self.model.waits_in_round(participant)

    async def stats(self) -> dict[str, float]:
        """Return the engine's totals."""
        return await self.model.stats()

    async def shutdown(self) -> None:
        """Shut the engine down."""
        await self.model.shutdown()

    def _keep(self, given: list[Experience], arguments: Mapping[str, Any], began: float) -> list[Experience]:
        ids = tuple(arguments.get("sample_ids") or ())
        copies = tuple(Experience.deserialize(each.serialize()) for each in given)
        self.calls.append(RecordedCall(ids, copies, time.perf_counter() - began))
        return given
