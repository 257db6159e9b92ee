"""An engine in a process of its own, seen from here as any other engine.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from trinity.common.config import Config
from trinity.common.errors import DeadlineError, EngineError
from trinity.common.experience import Experience
from trinity.common.models.model import InferenceModel, Messages, call_timeout_s
from trinity.common.weights import Ticket
from trinity.runtime.base import START_TIMEOUT_S, ActorDiedError, Handle, Resources, Runtime
from trinity.utils.deadline import bounded
from trinity.utils.log import get_logger

logger = get_logger("explorer")

R = TypeVar("R")

# What a message needs beyond the deadline that the engine itself keeps.
MESSAGE_GRACE_S = 10.0
SHUTDOWN_S = 10.0

MakeEngine = Callable[[Config, int | None], InferenceModel]


class EngineHost:
    """Where the engine is: calls it, and gets the weights of a version itself.

    Args:
        make: returns the engine of a configuration, not yet prepared.
        config: of the stage.
        auxiliary: index of the auxiliary model; None: the rollout model.
    """

    def __init__(self, make: MakeEngine, config: Config, auxiliary: int | None = None) -> None:
        self._engine = make(config, auxiliary)

    async def prepare(self) -> tuple[int, dict[str, int]]:
        """Load the engine; return its version and its vocabulary."""
        await self._engine.prepare()
        return self._engine.model_version, dict(self._engine.vocabulary())

    async def generate(self, prompt: str | Sequence[int], arguments: Mapping[str, Any]) -> list[Experience]:
        """Return `n` samples of one prompt."""
        return await self._engine.generate(prompt, **arguments)

    async def chat(
        self, messages: Messages, tools: list[dict[str, Any]] | None, arguments: Mapping[str, Any]
    ) -> list[Experience]:
        """Return `n` answers to a conversation."""
        return await self._engine.chat(messages, tools=tools, **arguments)

    async def logprobs(self, tokens: Sequence[int], temperature: float) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first."""
        return await self._engine.logprobs(tokens, temperature=temperature)

    async def convert_messages_to_experience(
        self, messages: Messages, tools: list[dict[str, Any]] | None, temperature: float | None
    ) -> Experience:
        """Return a conversation as one experience."""
        return await self._engine.convert_messages_to_experience(messages, tools, temperature)

    async def get_message_token_len(self, messages: Messages) -> int:
        """Return the number of tokens of a conversation as a prompt."""
        return await self._engine.get_message_token_len(messages)

    async def update_weights(self, ref: Any, version: int) -> int:
        """Take the weights that a reference of the runtime's objects leads to; return the version."""
        await self._engine.update_weights(ref.load(), version=version)
        return self._engine.model_version

    async def pull(self, ticket: Ticket) -> int:
        """Take the weights of a ticket; return the version."""
        await self._engine.pull(ticket)
        return self._engine.model_version

    async def join_round(self, participant: str) -> None:
        """Let every round wait for a request of `participant`."""
        await self._engine.join_round(participant)

    async def leave_round(self, participant: str) -> None:
        """Do not let rounds wait for `participant` any more."""
        await self._engine.leave_round(participant)

    async def waits_in_round(self, participant: str) -> bool:
        """Return whether a round has yet to answer `participant`."""
        return await self._engine.waits_in_round(participant)

    async def stats(self) -> dict[str, float]:
        """Return the engine's totals."""
        return await self._engine.stats()

    async def shutdown(self) -> None:
        """Give everything back."""
        await self._engine.shutdown()


@dataclass(frozen=True)
class EnginePlace:
    """Where an engine is started.

    Attributes:
        runtime: starts its process.
        config: of the stage.
        make: returns the engine, there.
        auxiliary: index of the auxiliary model; None: the rollout model.
        num_gpus: GPUs of one engine.
    """

    runtime: Runtime
    config: Config
    make: MakeEngine
    auxiliary: int | None = None
    num_gpus: float = 0

    async def start(self, index: int) -> Handle:
        """Return a handle of engine number `index`, not yet prepared."""
        explorer = self.config.explorer
        kind = "rollout_model" if self.auxiliary is None else f"auxiliary_model_{self.auxiliary}"
        return await self.runtime.start(
            EngineHost,
            self.make,
            self.config,
            self.auxiliary,
            name=f"{explorer.name}_{kind}_{index}",
            resources=Resources(num_gpus=self.num_gpus, own_process=True),
        )


class RemoteEngine:
    """An engine behind a handle; see `trinity.common.models.model.InferenceModel`.

    Every call has the deadline that the engine keeps, and a few seconds more for the way.

    Args:
        place: starts the engine's process.
        index: number of the engine.
    """

    def __init__(self, place: EnginePlace, index: int = 0) -> None:
        config = place.config
        self._place = place
        self._index = index
        self._timeout_s = call_timeout_s(config) + MESSAGE_GRACE_S
        self._sync_timeout_s = config.synchronizer.sync_timeout + MESSAGE_GRACE_S
        self._handle: Handle | None = None
        self._version = 0
        self._vocabulary: dict[str, int] = {}

    @property
    def model_version(self) -> int:
        """Version of the weights that the engine took last."""
        return self._version

    @property
    def handle(self) -> Handle:
        """The engine's handle; there after `prepare`."""
        if self._handle is None:
            raise EngineError("the engine is not prepared; await prepare() first", code="E5607")
        return self._handle

    def vocabulary(self) -> Mapping[str, int]:
        """Return the id of each token of the tokenizer."""
        return self._vocabulary

    async def prepare(self) -> None:
        """Start the process and load the engine there; does nothing the second time.

        Raises:
            ActorDiedError: the process ended (E5701).
            TrinityError: as the engine.
        """
        if self._handle is not None:
            return
        handle = await self._place.start(self._index)
        try:
            self._version, self._vocabulary = await bounded(
                handle.prepare(), START_TIMEOUT_S, what=f"{handle.name} to load its model", setting="START_TIMEOUT_S"
            )
        except BaseException:
            await handle.kill()
            raise
        self._handle = handle

    async def generate(self, prompt: str | Sequence[int], **arguments: Any) -> list[Experience]:
        """Return `n` samples of one prompt."""
        return await self._asked(self.handle.generate(prompt, arguments), "the samples of")

    async def chat(
        self, messages: Messages, *, tools: list[dict[str, Any]] | None = None, **arguments: Any
    ) -> list[Experience]:
        """Return `n` answers to a conversation."""
        return await self._asked(self.handle.chat(messages, tools, arguments), "the answers of")

    async def logprobs(self, tokens: Sequence[int], *, temperature: float = 1.0) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first."""
        return await self._asked(self.handle.logprobs(tokens, temperature), "the logprobs of")

    async def convert_messages_to_experience(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, temperature: float | None = None
    ) -> Experience:
        """Return a conversation as one experience whose actions are the assistant's tokens."""
        return await self._asked(
            self.handle.convert_messages_to_experience(messages, tools, temperature), "an experience of"
        )

    async def get_message_token_len(self, messages: Messages) -> int:
        """Return the number of tokens of a conversation as a prompt."""
        return await self._asked(self.handle.get_message_token_len(messages), "a token count of")

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Copy `weights` into the engine and set its version."""
        ref = self._place.runtime.objects.put(weights)
        try:
            self._version = await self._synced(self.handle.update_weights(ref, version))
        finally:
            ref.drop()

    async def pull(self, ticket: Ticket) -> None:
        """Let the engine's process get the weights of a ticket, check them, and take them."""
        self._version = await self._synced(self.handle.pull(ticket))

    async def join_round(self, participant: str) -> None:
        """In deterministic mode, let every round wait for a request of `participant`."""
        await self._asked(self.handle.join_round(participant), "an answer of")

    async def leave_round(self, participant: str) -> None:
        """Do not let rounds wait for `participant` any more."""
        await self._asked(self.handle.leave_round(participant), "an answer of")

    async def waits_in_round(self, participant: str) -> bool:
        """Return whether a deterministic round has yet to answer a request of `participant`."""
        return await self._asked(self.handle.waits_in_round(participant), "an answer of")

    async def stats(self) -> dict[str, float]:
        """Return totals since the start."""
        return await self._asked(self.handle.stats(), "the statistics of")

    async def shutdown(self) -> None:
        """End the engine and its process, whatever state they are in."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        try:
            await bounded(handle.shutdown(), SHUTDOWN_S, what=f"{handle.name} to shut down", setting="SHUTDOWN_S")
        except (ActorDiedError, DeadlineError) as error:
            logger.warning("%s is killed: %s", handle.name, error)
        finally:
            await handle.kill()

    async def _asked(self, call: Awaitable[R], what: str) -> R:
        return await bounded(call, self._timeout_s, what=f"{what} {self.handle.name}", setting="explorer.max_timeout")

    async def _synced(self, call: Awaitable[R]) -> R:
        what = f"{self.handle.name} to take the new weights"
        return await bounded(call, self._sync_timeout_s, what=what, setting="synchronizer.sync_timeout")


class RemoteEngines:
    """Engines in processes of their own, as a router's source.

    Args:
        place: where they are started.
    """

    def __init__(self, place: EnginePlace) -> None:
        self._place = place

    async def start(self, index: int) -> InferenceModel:
        """Return a new engine in a process of its own, prepared."""
        engine = RemoteEngine(self._place, index)
        await engine.prepare()
        return engine

    async def end(self, engine: InferenceModel) -> None:
        """End the engine's process."""
        await engine.shutdown()
