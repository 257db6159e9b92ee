"""A process of runners, as that process sees it.

The engines live elsewhere. A call to one waits here until the parent fetches it, and is answered by the parent; so the
parent alone opens calls between the two, whatever places the process. Calls and answers travel in batches.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

from trinity.common.config import Config
from trinity.common.errors import EngineError
from trinity.common.experience import Experience
from trinity.common.models.inference_model import Messages
from trinity.common.weights import Ticket
from trinity.common.workflows.task import Task
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.api.limits import EndpointLimits
from trinity.explorer.isolation.memory import limit_memory
from trinity.explorer.outcome import Outcome
from trinity.explorer.runner import WorkflowRunner
from trinity.explorer.wrappers import auxiliary_wrappers, wrapper
from trinity.runtime.batched import BatchedCalls, BatchedHost, Call, Fetched, Result
from trinity.runtime.process_exit import adopt_orphans

NO_DEADLINE_S = 1e9
VOCABULARY_TIMEOUT_S = 60.0


class EngineCalls(Protocol):
    """Carries calls to engines elsewhere."""

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what `ask` of the other side returns; see `RunnerPlace`."""


class DistantEngine:
    """A proxy of an engine in another process; see `InferenceModel`."""

    def __init__(self, calls: EngineCalls, index: int) -> None:
        self.model_version = 0
        self._calls = calls
        self._index = index
        self._loop = asyncio.get_running_loop()

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.model_version, value = await self._calls.call("ask", self._index, method, args, kwargs)
        return value

    async def prepare(self) -> None:
        """Do nothing: the parent prepares its engines."""

    async def generate(self, prompt: str | Sequence[int], **arguments: Any) -> list[Experience]:
        """Return `n` responses to one prompt."""
        return list(await self._ask("generate", prompt, **arguments))

    async def chat(
        self, messages: Messages, *, tools: list[dict[str, Any]] | None = None, **arguments: Any
    ) -> list[Experience]:
        """Return `n` responses to a conversation."""
        return list(await self._ask("chat", messages, tools=tools, **arguments))

    async def logprobs(self, tokens: Sequence[int], *, temperature: float = 1.0) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first."""
        values: Tensor = await self._ask("logprobs", tokens, temperature=temperature)
        return values

    async def convert_messages_to_experience(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None = None,
        temperature: float | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Experience:
        """Return a conversation as one experience."""
        given = (messages, tools, temperature, template_args)
        experience: Experience = await self._ask("convert_messages_to_experience", *given)
        return experience

    async def get_message_token_len(self, messages: Messages, template_args: Mapping[str, Any] | None = None) -> int:
        """Return the number of tokens of a conversation as a prompt."""
        return int(await self._ask("get_message_token_len", messages, template_args))

    async def asked_vocabulary(self) -> Mapping[str, int]:
        """Return the id of each token of the tokenizer."""
        return dict(await self._ask("vocabulary"))

    def vocabulary(self) -> Mapping[str, int]:
        """Return the id of each token of the tokenizer.

        This blocks, so call it from a thread.
        """
        call = self._ask("vocabulary")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            found: dict[str, int] = asyncio.run_coroutine_threadsafe(call, self._loop).result(VOCABULARY_TIMEOUT_S)
            return found
        call.close()
        raise EngineError("the vocabulary of a distant engine would block the event loop", code="E5610")

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Refuse: weights come from the trainer.

        Raises:
            EngineError: always (E5635).
        """
        raise EngineError("a workflow cannot change the weights of an engine", code="E5635")

    async def pull(self, ticket: Ticket) -> None:
        """Refuse: weights come from the trainer.

        Raises:
            EngineError: always (E5635).
        """
        raise EngineError("a workflow cannot change the weights of an engine", code="E5635")

    async def join_round(self, participant: str) -> None:
        """Let every round wait for a request of `participant`."""
        await self._ask("join_round", participant)

    async def leave_round(self, participant: str) -> None:
        """Do not let rounds wait for `participant` any more."""
        await self._ask("leave_round", participant)

    async def waits_in_round(self, participant: str) -> bool:
        """Return whether a round has yet to answer `participant`."""
        return bool(await self._ask("waits_in_round", participant))

    async def stats(self) -> dict[str, float]:
        """Return the engine's totals."""
        return dict(await self._ask("stats"))

    async def shutdown(self) -> None:
        """Do nothing: the parent shuts its engines down."""


class RunnerProcess:
    """Does what its parent's runners ask for.

    Args:
        config: the run's configuration.
        engine_count: number of engines, that of the rollout model among them.
    """

    def __init__(self, config: Config, *, engine_count: int) -> None:
        self._config = config
        self._count = engine_count
        self._parent = Fetched("the engines")
        self._calls = BatchedCalls(self._parent)
        self._engines: list[DistantEngine] = []
        self._runners: dict[str, WorkflowRunner] = {}
        self._endpoint = Endpoint(limits=EndpointLimits.of(config))
        self._batched = BatchedHost(self, "a runner")

    async def prepare(self) -> None:
        """Create the engine proxies on the event loop; limit the memory.

        A second call has no effect.
        """
        if not self._engines:
            limit_bytes = self._config.explorer.runner_memory_bytes
            if limit_bytes is not None:
                adopt_orphans()
                limit_memory(os.getpid(), limit_bytes)
            self._engines = [DistantEngine(self._calls, index) for index in range(self._count)]

    async def perform(
        self, runner_name: str, task: Task, runs: range, *, participant: str, is_greedy: bool, versions: Sequence[int]
    ) -> list[Outcome]:
        """Return the outcome of each of `runs`; the parent has the deadline."""
        self._serve(versions)
        runner = self._runners.get(runner_name) or self._new_runner(runner_name)
        runner.participant = participant
        runner.start_batch()
        try:
            return await runner.perform(task, runs, is_greedy=is_greedy)
        except asyncio.CancelledError:
            runner.abandon(is_overdue=False)
            raise

    async def post(self, caller: str, calls: Sequence[Call]) -> None:
        """Begin attempts, or cancel them; see `BatchedCalls`."""
        await self._batched.post(caller, calls)

    async def collect(self, caller: str, timeout_s: float) -> list[Result]:
        """Return the outcomes that have come; see `BatchedCalls`."""
        return await self._batched.collect(caller, timeout_s)

    async def fetch(self, timeout_s: float) -> list[Call]:
        """Return the engine calls that wait for the parent."""
        return await self._parent.calls.take(timeout_s)

    async def answer(self, results: Sequence[Result]) -> None:
        """Give engine calls their answers."""
        self._parent.results.put(results)

    async def is_alive(self) -> bool:
        """Return True, if the event loop of the process is free to say so."""
        return True

    def _serve(self, versions: Sequence[int]) -> None:
        for engine, version in zip(self._engines, versions, strict=True):
            engine.model_version = version

    def _new_runner(self, name: str) -> WorkflowRunner:
        model = wrapper(self._config, self._engines[0], endpoint=self._endpoint)
        others = auxiliary_wrappers(self._config, self._engines[1:], self._endpoint)
        made = self._runners[name] = WorkflowRunner(name, model, max_timeout=NO_DEADLINE_S, auxiliary_models=others)
        return made
