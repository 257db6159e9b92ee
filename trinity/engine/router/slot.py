"""One engine behind the router: its state, its load and its source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from trinity.common.errors import EngineError, TrinityError
from trinity.common.models.inference_model import InferenceModel

R = TypeVar("R")

GONE_CODES = frozenset({"E5601", "E5606", "E5607", "E5611", "E5660", "E5661", "E5663", "E5701"})
"""Codes of errors of an engine, not of a request: its thread has failed or ended, or its process has ended."""


class EngineSource(Protocol):
    """Starts and ends the engines of a router."""

    async def start(self, index: int) -> InferenceModel:
        """Return engine number `index`, prepared; a later call: its replacement."""

    async def end(self, engine: InferenceModel) -> None:
        """End an engine in whatever state it is."""


class LocalEngines:
    """Engines in this process.

    Args:
        make: returns a new engine, not yet prepared.
    """

    def __init__(self, make: Callable[[], InferenceModel]) -> None:
        self._make = make

    async def start(self, index: int) -> InferenceModel:
        """Return a new engine, prepared."""
        engine = self._make()
        await engine.prepare()
        return engine

    async def end(self, engine: InferenceModel) -> None:
        """Shut the engine down."""
        await engine.shutdown()


@dataclass(eq=False)
class EngineSlot:
    """One engine from start to end; its replacement gets a new slot.

    Attributes:
        index: number of the engine.
        engine: the engine.
        epoch: number of the router's last weight update that it has loaded; -1 for none.
        is_leaving: whether it gets no new requests.
        load: samples in progress.
        answered: requests answered.
        stats: its last reported totals.
        lost: why it was given up; None while it lives.
        taking: held while it loads weights.
    """

    index: int
    engine: InferenceModel
    epoch: int = -1
    is_leaving: bool = False
    load: float = 0.0
    answered: int = 0
    stats: dict[str, float] = field(default_factory=dict)
    lost: BaseException | None = None
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def give_up(self, error: BaseException) -> None:
        """Mark the engine as lost; its pending requests raise `EngineGone`."""
        self.lost = error
        self._gone.set()

    async def answer(self, call: Coroutine[Any, Any, R], *, samples: float) -> R:
        """Return the result of `call` to the engine.

        Raises:
            EngineGone: the engine failed or was given up; a late answer is discarded.
        """
        self.load += samples
        answer = asyncio.ensure_future(call)
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            # The call has the engine's deadline, and the router bounds the whole request.
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise EngineGone(self.lost)
            result = answer.result()
        except TrinityError as error:
            if isinstance(error, EngineGone) or not is_engine_failure(error):
                raise
            raise EngineGone(error) from error
        finally:
            self.load -= samples
            discard((answer, gone))
        self.answered += 1
        return result


class EngineGone(EngineError):
    """The engine is lost; another one can answer the request."""

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__(f"the engine is gone: {cause}", code="E5631")
        self.cause = cause


def is_engine_failure(error: BaseException) -> bool:
    """Return whether the engine has failed, not only the request."""
    return isinstance(error, TrinityError) and error.code in GONE_CODES


def discard(calls: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel calls and ignore their results and errors."""
    for call in calls:
        call.cancel()
        call.add_done_callback(_retrieve)


def _retrieve(call: asyncio.Future[Any]) -> None:
    if not call.cancelled():
        call.exception()
