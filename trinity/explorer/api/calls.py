"""One call of a model for a request: who waits for it, until when."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from fastapi import Request

from trinity.common.experience import Experience
from trinity.common.models.watching import Begun, Top, watched
from trinity.explorer.api.errors import CLIENT_GONE, BadRequestError, HTTPError
from trinity.explorer.api.requests import ChatRequest, CompletionRequest

POLL_S = 0.5
Asked = ChatRequest | CompletionRequest


class Served(Protocol):
    """A model that answers; see `ModelWrapper`."""

    @property
    def model_name(self) -> str:
        """Name of the model."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names by which it may be asked for."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and response."""

    def submit(self, call: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a call on the model's event loop."""

    async def chat_async(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[Experience]:
        """Return `n` responses to a conversation."""

    async def generate_async(self, prompts: Any, **kwargs: Any) -> list[Experience]:
        """Return `n` samples of each prompt."""

    def words(self) -> dict[int, str]:
        """Return the text of each token id."""


ModelOf = Callable[[str, Mapping[str, str]], Served | None]
"""The model that a token gives access to, with the headers of the call.

None for an unknown token. `BadRequestError` for headers that cannot be taken.
"""


class Drawn(NamedTuple):
    """A token of a choice."""

    choice: int
    token: int
    logprob: float
    top: Top = ()


class RunningCall:
    """A call of the model, its tokens as they are sampled, and its result.

    It is cancelled when its client has disconnected or its time is over, and then leaves no record.

    Args:
        request: asks for it.
        model: answers.
        asked: what is asked.
        timeout_s: longest time until the result; None: the model's own.
    """

    def __init__(self, request: Request, model: Served, asked: Asked, *, timeout_s: float | None = None) -> None:
        self.call_id = uuid.uuid4().hex
        self.asked = asked
        self.is_restarted = False
        self._request, self._is_given_up = request, False
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._look_at = time.monotonic() + POLL_S
        self._begun: dict[int, Begun] = {}
        self._arrived: deque[Begun | Drawn] = deque()
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._is_woken = False
        self._call = model.submit(self._watched(_call(model, asked)))
        self._waiting = asyncio.wrap_future(self._call)
        self._waiting.add_done_callback(lambda _: self._wake.set())

    async def _watched(self, call: Coroutine[Any, Any, list[Experience]]) -> list[Experience]:
        with watched(self):
            return await call

    # ---------------------------------------------- of the model, in any thread
    def begin(self, begun: Begun) -> None:
        """Take note of a prompt; see `Watcher`."""
        self._put(begun)

    def token(self, prompt: int, sample: int, token: int, logprob: float, top: Top) -> None:
        """Take a token of a sample; see `Watcher`."""
        self._put(Drawn(prompt * (self.asked.n or 1) + sample, token, logprob, top))

    def accept(self, experiences: Sequence[Experience]) -> None:
        """Refuse an answer that nobody waits for, or that is not as asked.

        Raises:
            BadRequestError: the answer has not the tool calls that were asked for.
        """
        if self._is_given_up:
            raise BadRequestError("the client has disconnected", code="client_gone")
        if isinstance(self.asked, ChatRequest):
            for number, exp in enumerate(experiences):
                self.asked.check_answer(number, exp.info.get("message") or {})

    def _put(self, item: Begun | Drawn) -> None:
        self._arrived.append(item)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                self._is_given_up = True  # the endpoint has ended

    # ------------------------------------------------------- of the endpoint
    async def result(self) -> list[Experience]:
        """Return the experiences of the call.

        Raises:
            HTTPError: the client has disconnected, or the time is over (504).
        """
        try:
            while not self._waiting.done():
                await asyncio.wait({self._waiting}, timeout=self._pause())
                await self._look()
            return self._waiting.result()
        finally:
            self.give_up()

    async def arrived(self) -> list[Drawn]:
        """Return tokens that have come since the last time; [] at the end.

        Raises:
            HTTPError: as `result`.
        """
        while True:
            self._is_woken = False
            self._wake.clear()
            drawn = list(self._taken())
            if time.monotonic() >= self._look_at:  # also while tokens come that nobody is shown yet
                await self._look()
            if drawn or self._waiting.done():
                return drawn
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                await self._look()

    async def prompt(self, number: int) -> Begun | None:
        """Return a prompt once its samples begin.

        None if the call ended before, or is not watched.
        """
        while number not in self._begun and not self._waiting.done():
            if not self._arrived:
                self._is_woken = False
                self._wake.clear()
            if not self._arrived:
                try:
                    async with asyncio.timeout(self._pause()):
                        await self._wake.wait()
                except TimeoutError:
                    await self._look()
            if self._arrived and isinstance(self._arrived[0], Begun):
                self._note(self._arrived.popleft())
            elif self._arrived:
                break
        return self._begun.get(number)

    def begun(self, number: int) -> Begun:
        """Return a prompt whose samples have begun."""
        return self._begun[number]

    def give_up(self) -> None:
        """Cancel the call unless it is done; an answer is then not recorded."""
        if not self._waiting.done():
            self._is_given_up = True
            self._waiting.cancel()

    def _taken(self) -> Any:
        while self._arrived:
            item = self._arrived.popleft()
            if isinstance(item, Begun):
                self._note(item)
            elif not self.is_restarted:
                yield item

    def _note(self, begun: Any) -> None:
        # An engine was lost, and another one begins again.
        self.is_restarted = self.is_restarted or begun.prompt in self._begun
        self._begun[begun.prompt] = begun

    def _pause(self) -> float:
        left = POLL_S if self._deadline is None else self._deadline - time.monotonic()
        return max(0.001, min(POLL_S, left))

    async def _look(self) -> None:
        """Raise if nobody waits any more, or for too long."""
        self._look_at = time.monotonic() + POLL_S
        if self._waiting.done():
            return
        if await self._request.is_disconnected():
            self.give_up()
            raise HTTPError(CLIENT_GONE, "the client has disconnected", kind="client_error")
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.give_up()
            raise HTTPError(504, f"no response within {self._timeout_s:g} s", kind="timeout_error", code="timeout")


def _call(model: Served, asked: Asked) -> Coroutine[Any, Any, list[Experience]]:
    arguments = asked.arguments(model.max_model_len)
    if isinstance(asked, ChatRequest):
        return model.chat_async(asked.messages, **arguments)
    return model.generate_async(asked.prompts, **arguments)
