"""One `InferenceModel` over several engines: routing and rerouting.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from trinity.common.constants import SyncMethod
from trinity.common.errors import EngineError, TrinityError
from trinity.common.experience import Experience
from trinity.common.models.inference_model import InferenceModel, Messages
from trinity.common.weights import Ticket, receive, shared_by
from trinity.engine.gauge import NOW
from trinity.engine.router.engine_pool import EnginePool, EnginePoolSettings
from trinity.engine.router.policy import PrefixTable, choose_engine, fixed_engine, group_of
from trinity.engine.router.remote import RemoteEngine
from trinity.engine.router.slot import EngineGone, EngineSlot, EngineSource
from trinity.runtime.base import ObjectRef, Objects
from trinity.runtime.objects import LocalObjects
from trinity.utils.deadline import bounded

R = TypeVar("R")

MAX_SHOWN_ENGINES = 16
_SHOWN = ("tokens_per_second", *NOW)
_Ask = Callable[[InferenceModel], Coroutine[Any, Any, R]]


class EngineRouter:
    """Several engines that act as one `InferenceModel`.

    If the engine of a request is lost, the request goes to another one; a late answer is discarded. Methods may be
    awaited on any event loop; the work runs on the loop of `prepare`.

    Args:
        source: starts and ends engines.
        settings: number, health and deadlines of the engines.
        timeout_s: longest time of a request in seconds, over all engines it is sent to.
        is_deterministic: the caller's identity decides which engine answers; requests wait for that one.
        objects: object store through which engines in other processes get weights; None: this machine's.
    """

    def __init__(
        self,
        source: EngineSource,
        settings: EnginePoolSettings,
        *,
        timeout_s: float,
        is_deterministic: bool = False,
        objects: Objects | None = None,
    ) -> None:
        self.rerouted_count = 0
        self._source = source
        self._settings = settings
        self._timeout_s = timeout_s
        self._is_deterministic = is_deterministic
        self._prefixes = PrefixTable()
        self._joined: dict[str, int] = {}
        self._calls = itertools.count()
        self._kept: ObjectRef | None = None
        self._objects = objects or LocalObjects()
        self._running: tuple[EnginePool, asyncio.AbstractEventLoop] | None = None

    # --------------------------------------------------------------------- life
    async def prepare(self) -> None:
        """Start all engines together; later calls do nothing.

        Raises:
            TrinityError: the first failure of an engine to start.
        """
        if self._running is not None:
            return
        pool = EnginePool(self._source, self._settings, on_start=self._join_again)
        self._running = pool, asyncio.get_running_loop()
        try:
            await pool.start()
        except BaseException:
            self._running = None
            raise

    async def shutdown(self) -> None:
        """End all engines; calls in progress fail."""
        if self._running is not None:
            await self._here(self._pool.close())
        if self._kept is not None:
            self._kept.drop()

    async def add_engine(self) -> int:
        """Start one more engine with the current weights; return its number."""
        return await self._here(self._pool.add())

    async def remove_engine(self, index: int) -> None:
        """End engine `index` once its requests are answered.

        Raises:
            EngineError: no such engine, or it is the last one (E5633).
        """
        await self._here(self._pool.remove(index, timeout_s=self._timeout_s))

    @property
    def _pool(self) -> EnginePool:
        if self._running is None:
            raise EngineError("the engines are not prepared; await prepare() first", code="E5611")
        return self._running[0]

    # ----------------------------------------------------------------- requests
    async def generate(self, prompt: str | Sequence[int], **arguments: Any) -> list[Experience]:
        """Return `n` responses to one prompt.

        Raises:
            EnginesLostError: no engine served for longer than `explorer.engine_recovery_timeout`.
            TrinityError: any error of the engine that answers.
        """
        return await self._sampled(lambda engine, given: engine.generate(prompt, **given), arguments)

    async def chat(
        self, messages: Messages, *, tools: list[dict[str, Any]] | None = None, **arguments: Any
    ) -> list[Experience]:
        """Return `n` responses to a conversation; raises as `generate`."""
        return await self._sampled(lambda engine, given: engine.chat(messages, tools=tools, **given), arguments)

    async def logprobs(self, tokens: Sequence[int], *, temperature: float = 1.0) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first; raises as `generate`."""
        return await self._asked(
            lambda engine: engine.logprobs(tokens, temperature=temperature), identity=str(list(tokens))
        )

    async def convert_messages_to_experience(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None = None,
        temperature: float | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Experience:
        """Return a conversation as an experience; raises as `generate`."""
        return await self._asked(
            lambda engine: engine.convert_messages_to_experience(messages, tools, temperature, template_args),
            identity=str(messages),
        )

    async def get_message_token_len(self, messages: Messages, template_args: Mapping[str, Any] | None = None) -> int:
        """Return a conversation's tokens as a prompt; raises as `generate`."""
        return await self._asked(
            lambda engine: engine.get_message_token_len(messages, template_args), identity=str(messages)
        )

    def vocabulary(self) -> Mapping[str, int]:
        """Return the tokenizer's ids by token.

        Raises:
            EngineError: no engine is up (E5630).
        """
        for slot in self._pool.slots.values():
            return slot.engine.vocabulary()
        raise EngineError("no inference engine is up, so the vocabulary is not known", code="E5630")

    async def _sampled(
        self, ask: Callable[[InferenceModel, dict[str, Any]], Coroutine[Any, Any, list[Experience]]], given: Any
    ) -> list[Experience]:
        count = max(1, int(given.get("n") or 1))
        if given.get("sample_ids") is None and given.get("seed") is None:
            # Engines with the same seed would otherwise number their calls alike and draw the same samples.
            call = next(self._calls)
            given = given | {"sample_ids": [f"~{call:012d}/{index:06d}" for index in range(count)]}
        ids = given.get("sample_ids")
        who = given.get("participant") or (ids[0] if ids else str(given.get("seed")))
        return await self._asked(
            lambda engine: ask(engine, given), identity=who, group=group_of(ids), samples=float(count)
        )

    async def _asked(self, ask: _Ask[R], *, identity: str, group: str | None = None, samples: float = 1.0) -> R:
        return await self._here(
            bounded(
                self._routed(ask, identity=identity, group=group, samples=samples),
                self._timeout_s,
                what="an engine's answer",
                setting="explorer.max_timeout",
            )
        )

    async def _routed(self, ask: _Ask[R], *, identity: str, group: str | None, samples: float) -> R:
        while True:
            slot = await self._slot(identity, group)
            try:
                return await slot.answer(ask(slot.engine), samples=samples)
            except EngineGone as error:
                self._pool.lose(slot, error.cause or error)
                self._prefixes.forget(slot.index)
                self.rerouted_count += 1

    async def _slot(self, identity: str, group: str | None) -> EngineSlot:
        pool = self._pool
        while True:
            serving = pool.serving()
            members = pool.members
            if self._is_deterministic:
                if self._joined.get(identity, members[0]) not in members:
                    await self._join(identity)  # its engine was removed
                members = [self._place_of(identity)]
                chosen = members[0] if members[0] in serving else None
            elif serving:
                loads = {index: slot.load for index, slot in serving.items()}
                chosen = choose_engine(loads, home=self._prefixes.home(group))
                self._prefixes.note(group, chosen)
            else:
                chosen = None
            if chosen is not None:
                return serving[chosen]
            await pool.wait(members)

    async def _here(self, work: Coroutine[Any, Any, R]) -> R:
        """Run `work` on the event loop of the engines."""
        loop = self._running[1] if self._running is not None else asyncio.get_running_loop()
        if loop is asyncio.get_running_loop():
            return await work
        # The work has its own deadline.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    # ------------------------------------------------------------------ weights
    @property
    def model_version(self) -> int:
        """Version of the weights that the next response will use."""
        return self._running[0].version if self._running is not None else 0

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Copy `weights` into every engine; none serves older ones from now on.

        A copy is kept for engines that replace lost ones.

        Raises:
            TrinityError: no engine could load them.
        """
        copies = await asyncio.to_thread(lambda: {name: tensor.detach().clone() for name, tensor in weights.items()})
        kept = await asyncio.to_thread(self._objects.put, copies)

        async def give(engine: InferenceModel) -> None:
            if isinstance(engine, RemoteEngine):
                await engine.load_weights(kept, version=version)
            else:
                await engine.update_weights(copies, version=version)

        previous, self._kept = self._kept, kept
        await self._here(self._pool.update(give, version=version))
        if previous is not None:
            previous.drop()

    async def pull(self, ticket: Ticket) -> None:
        """Make every engine load a ticket's weights; raises as `update_weights`.

        Weights in memory may change or be freed once they are loaded; so a copy is kept, as in `update_weights`.
        """
        if ticket.method == SyncMethod.MEMORY.value:
            weights = await asyncio.to_thread(receive, ticket, timeout_s=self._settings.sync_timeout_s)
            await self.update_weights(weights, version=ticket.version)
            return

        shares = iter(shared_by(ticket, len(self._pool.slots)))  # an engine that starts later uses the ticket itself

        async def give(engine: InferenceModel) -> None:
            await engine.pull(next(shares, ticket))

        await self._here(self._pool.update(give, version=ticket.version))

    # ------------------------------------------------------------------- rounds
    async def join_round(self, participant: str) -> None:
        """In deterministic mode, make rounds of an engine wait for `participant`."""
        if self._is_deterministic:
            await self._here(self._join(participant))

    async def leave_round(self, participant: str) -> None:
        """Stop rounds from waiting for `participant`."""
        index = self._joined.pop(participant, None)
        slot = self._pool.slots.get(index) if index is not None else None
        if slot is not None:
            await self._here(self._told(slot, slot.engine.leave_round(participant)))

    async def waits_in_round(self, participant: str) -> bool:
        """Return whether `participant` waits for a round or for a lost engine."""
        index = self._joined.get(participant)
        if index is None:
            return False
        slot = self._pool.slots.get(index)
        if slot is None:
            return True
        try:
            return await self._here(slot.engine.waits_in_round(participant))
        except TrinityError:
            return True  # its requests and probes detect whether the engine is lost

    def _place_of(self, identity: str) -> int:
        """Return the engine whose rounds `identity` joined, else that of its name."""
        joined, members = self._joined.get(identity), self._pool.members
        return joined if joined in members else fixed_engine(identity, members)

    async def _join(self, participant: str) -> None:
        index = self._joined[participant] = self._place_of(participant)
        slot = self._pool.slots.get(index)
        if slot is not None:
            await self._told(slot, slot.engine.join_round(participant))

    async def _join_again(self, slot: EngineSlot) -> None:
        """Join the participants of a lost engine to its replacement's rounds."""
        for participant in [name for name, index in self._joined.items() if index == slot.index]:
            await slot.engine.join_round(participant)
            if self._joined.get(participant) != slot.index:
                await slot.engine.leave_round(participant)

    async def _told(self, slot: EngineSlot, call: Coroutine[Any, Any, None]) -> None:
        try:
            await slot.answer(call, samples=0.0)
        except EngineGone as error:
            self._pool.lose(slot, error.cause or error)

    # ------------------------------------------------------------------- counts
    async def stats(self) -> dict[str, float]:
        """Return totals of all engines, and figures of the living ones.

        Totals include lost engines; tokens per second and slots do not. Each of the first 16 engines has its figures of
        `RequestGauge.table`, its load, answered requests and restarts.
        """
        return await self._here(self._stats())

    async def _stats(self) -> dict[str, float]:
        pool = self._pool
        slots = [slot for _, slot in sorted(pool.slots.items())]
        await asyncio.gather(*(pool.probe(slot) for slot in slots))
        totals = dict(pool.past)
        for slot in slots:
            for name, value in slot.stats.items():
                if name not in NOW:
                    totals[name] = totals.get(name, 0.0) + value
        totals |= {
            "engines": float(len(pool.members)),
            "engines_serving": float(len(pool.serving())),
            "engine_restarts": float(pool.restart_count),
            "rerouted_requests": float(self.rerouted_count),
        }
        for slot in slots[:MAX_SHOWN_ENGINES]:
            totals[f"{slot.index}/load"] = slot.load
            totals[f"{slot.index}/answered_requests"] = float(slot.answered)
            totals |= {f"{slot.index}/{name}": slot.stats[name] for name in _SHOWN if name in slot.stats}
        for index in pool.members[:MAX_SHOWN_ENGINES]:
            totals[f"{index}/restarts"] = float(pool.restarts[index])
        return totals
