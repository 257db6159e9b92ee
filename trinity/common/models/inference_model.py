"""The protocol of inference engines.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from trinity.common.experience import Experience
from trinity.common.models.said import Said
from trinity.common.weights import Ticket

Messages = Sequence[dict[str, Any]]


@runtime_checkable
class InferenceModel(Protocol):
    """An engine that samples from its own copy of a causal language model."""

    @property
    def model_version(self) -> int:
        """Version of the weights that the next response will use."""

    async def prepare(self) -> None:
        """Load model and tokenizer; a second call does nothing."""

    async def generate(self, prompt: str | Sequence[int], **arguments: Any) -> list[Experience]:
        """Return `n` responses to one prompt."""

    async def chat(
        self,
        messages: Messages,
        *,
        tools: list[dict[str, Any]] | None = None,
        said: Said | None = None,
        **arguments: Any,
    ) -> list[Experience]:
        """Return `n` responses to a conversation.

        `said` holds the tokens of the beginning of the conversation, if a call gave them; see `Turns`.
        `template_args`, also in the next two methods, holds `chat_template` and `enable_thinking` where they differ
        from those of the model.
        """

    async def logprobs(self, tokens: Sequence[int], *, temperature: float = 1.0) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first."""

    async def convert_messages_to_experience(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None = None,
        temperature: float | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Experience:
        """Return a conversation as an experience whose actions are its answers."""

    async def get_message_token_len(self, messages: Messages, template_args: Mapping[str, Any] | None = None) -> int:
        """Return the number of tokens of a conversation as a prompt."""

    def vocabulary(self) -> Mapping[str, int]:
        """Return the tokenizer's ids by token; available after `prepare`."""

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Copy weights in by Hugging Face name and set their version."""

    async def pull(self, ticket: Ticket) -> None:
        """Fetch, verify and load a ticket's weights; on failure keep the old."""

    async def join_round(self, participant: str) -> None:
        """In deterministic mode, make every round wait for `participant`."""

    async def leave_round(self, participant: str) -> None:
        """Stop rounds from waiting for `participant`."""

    async def waits_in_round(self, participant: str) -> bool:
        """Return whether `participant` has an open request in a round."""

    async def stats(self) -> dict[str, float]:
        """Return totals since the start, and tokens per second."""

    async def shutdown(self) -> None:
        """Release all resources; calls in progress fail."""
