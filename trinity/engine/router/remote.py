"""Engines in processes of their own: the host there, the proxy here.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from trinity.common.errors import EngineError, TrinityError
from trinity.common.experience import Experience
from trinity.common.models.inference_model import InferenceModel, Messages
from trinity.common.weights import Ticket
from trinity.engine.router.engine_pool import PREPARE_TIMEOUT_S
from trinity.runtime.base import Handle, ObjectRef, Resources, Runtime
from trinity.runtime.batched import BatchedCalls, BatchedHost, Call, Result
from trinity.runtime.objects import LocalRef
from trinity.utils.deadline import bounded, within

CALL_GRACE_S = 30.0
"""Seconds for transport to an engine and back, beyond the engine's own deadline."""
SHUTDOWN_GRACE_S = 5.0


class EngineHost:
    """An engine in its own process, which loads weights by reference.

    Args:
        make: the engine's class, or a function that returns an engine.
        args: arguments of `make`.
    """

    def __init__(self, make: Callable[..., InferenceModel], *args: Any) -> None:
        self._engine = make(*args)
        self._batched = BatchedHost(self._engine, "the engine")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_engine"], name)

    async def post(self, caller: str, calls: Sequence[Call]) -> None:
        """Begin or cancel requests; see `BatchedCalls`."""
        await self._batched.post(caller, calls)

    async def collect(self, caller: str, timeout_s: float) -> list[Result]:
        """Return the answers that are ready; see `BatchedCalls`."""
        return await self._batched.collect(caller, timeout_s)

    async def load_weights(self, ref: ObjectRef, *, version: int) -> None:
        """Copy the weights behind a reference into the engine."""
        weights = await asyncio.to_thread(ref.load)
        await self._engine.update_weights(weights, version=version)


class RemoteEngine:
    """An engine behind a handle; see `InferenceModel`.

    Args:
        handle: handle of an `EngineHost`.
        timeout_s: longest wait for one call in seconds, without transport.
        sync_timeout_s: longest wait for a weight update in seconds, without transport.
    """

    def __init__(self, handle: Handle, *, timeout_s: float, sync_timeout_s: float) -> None:
        self.handle = handle
        self._batched = BatchedCalls(handle)
        self._timeout_s = timeout_s
        self._sync_timeout_s = sync_timeout_s
        self._version = 0
        self._vocabulary: dict[str, int] | None = None

    @property
    def model_version(self) -> int:
        """Version of the weights that the next response will use."""
        return self._version

    async def prepare(self) -> None:
        """Load the engine's model and tokenizer; later calls do nothing."""
        if self._vocabulary is None:
            await bounded(self.handle.prepare(), PREPARE_TIMEOUT_S, what=self.handle.name, setting="PREPARE_TIMEOUT_S")
            self._vocabulary = dict(await self._call("vocabulary"))

    async def generate(self, prompt: str | Sequence[int], **arguments: Any) -> list[Experience]:
        """Return `n` responses to one prompt."""
        return list(await self._call("generate", prompt, **arguments))

    async def chat(
        self, messages: Messages, *, tools: list[dict[str, Any]] | None = None, **arguments: Any
    ) -> list[Experience]:
        """Return `n` responses to a conversation."""
        return list(await self._call("chat", messages, tools=tools, **arguments))

    async def logprobs(self, tokens: Sequence[int], *, temperature: float = 1.0) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first."""
        values: Tensor = await self._call("logprobs", tokens, temperature=temperature)
        return values

    async def convert_messages_to_experience(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None = None,
        temperature: float | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Experience:
        """Return a conversation as an experience whose actions are its responses."""
        given = (messages, tools, temperature, template_args)
        experience: Experience = await self._call("convert_messages_to_experience", *given)
        return experience

    async def get_message_token_len(self, messages: Messages, template_args: Mapping[str, Any] | None = None) -> int:
        """Return the number of tokens of a conversation as a prompt."""
        return int(await self._call("get_message_token_len", messages, template_args))

    def vocabulary(self) -> Mapping[str, int]:
        """Return the tokenizer's ids by token.

        Raises:
            EngineError: `prepare` was not awaited (E5611).
        """
        if self._vocabulary is None:
            raise EngineError("the engine is not prepared; await prepare() first", code="E5611")
        return self._vocabulary

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Copy `weights` into the engine and set its version."""
        ref = LocalRef(weights)
        try:
            await self.load_weights(ref, version=version)
        finally:
            ref.drop()

    async def load_weights(self, ref: ObjectRef, *, version: int) -> None:
        """Copy the weights behind a reference into the engine."""
        await self._sync(self.handle.load_weights(ref, version=version), version)

    async def pull(self, ticket: Ticket) -> None:
        """Make the engine fetch, verify and load the weights of a ticket."""
        await self._sync(self.handle.pull(ticket), ticket.version)

    async def join_round(self, participant: str) -> None:
        """Make every round wait for a request of `participant`."""
        await self._call("join_round", participant)

    async def leave_round(self, participant: str) -> None:
        """Stop rounds from waiting for `participant`."""
        await self._call("leave_round", participant)

    async def waits_in_round(self, participant: str) -> bool:
        """Return whether `participant` has an open request in a round."""
        return bool(await self._call("waits_in_round", participant))

    async def stats(self) -> dict[str, float]:
        """Return the engine's totals."""
        return dict(await self._call("stats"))

    async def shutdown(self) -> None:
        """End the engine and its process; kill it if it does not answer."""
        try:
            await within(self.handle.shutdown(), SHUTDOWN_GRACE_S)
        except (TimeoutError, TrinityError):
            pass  # it hangs or has already ended
        finally:
            await self.handle.kill()
            self._batched.close()

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await bounded(
            self._batched.call(method, *args, **kwargs),
            self._timeout_s + CALL_GRACE_S,
            what=f"{self.handle.name} ({method})",
            setting="explorer.max_timeout",
        )

    async def _sync(self, taking: Any, version: int) -> None:
        await bounded(
            taking,
            self._sync_timeout_s + CALL_GRACE_S,
            what=f"{self.handle.name} to take version {version}",
            setting="synchronizer.sync_timeout",
        )
        self._version = version


class RuntimeEngines:
    """Engines that a runtime starts, each in its own process.

    See `EngineSource`.

    Args:
        runtime: starts the processes.
        make: the engine's class, or a function that returns an engine.
        args: arguments of `make`.
        name: prefix of the engines' names.
        resources: resources of one engine.
        count: engines whose resources are reserved together, before the first of them starts.
        timeout_s: longest wait for one call in seconds.
        sync_timeout_s: longest wait for a weight update in seconds.
    """

    def __init__(
        self,
        runtime: Runtime,
        make: Callable[..., InferenceModel],
        *args: Any,
        name: str,
        resources: Resources,
        timeout_s: float,
        sync_timeout_s: float,
        count: int = 1,
    ) -> None:
        self._runtime = runtime
        self._what = (make, *args)
        self._name = name
        self._resources = resources
        self._count = count
        self._places: asyncio.Task[list[Resources]] | None = None
        self._timeouts = {"timeout_s": timeout_s, "sync_timeout_s": sync_timeout_s}

    async def start(self, index: int) -> RemoteEngine:
        """Return engine number `index`, prepared, in a new process."""
        places = await self._reserved()
        resources = places[index] if index < len(places) else self._resources
        handle = await self._runtime.start(EngineHost, *self._what, name=f"{self._name}_{index}", resources=resources)
        engine = RemoteEngine(handle, **self._timeouts)
        try:
            await engine.prepare()
        except BaseException:
            await handle.kill()
            raise
        return engine

    async def _reserved(self) -> list[Resources]:
        """Return the reserved resources of the first engines.

        A restarted engine gets its earlier reservation.
        """
        if self._places is None:
            work = self._runtime.reserve(self._count, name=self._name, resources=self._resources)
            self._places = asyncio.ensure_future(work)
            self._places.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._places)

    async def end(self, engine: InferenceModel) -> None:
        """End an engine and its process."""
        await engine.shutdown()
