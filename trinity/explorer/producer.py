"""The experience store as one explorer uses it.

It holds the buffer, the producer's name, and one thread for the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity.buffer.pipelines.pipeline_input import PipelineInput
    from trinity.buffer.store import AppendResult, ExperienceStore
    from trinity.buffer.store.staleness import StalenessBound, UntrainedRollouts
    from trinity.common.experience import Experience

Call = Callable[..., Coroutine[Any, Any, Any]]


class Producer:
    """An explorer in the store.

    Args:
        store: where experiences go.
        call: runs a blocking call; the calls come one after the other.
        buffer: name of the experience buffer.
        name: of the explorer.
        scope: `run` and `stage` of the rows.
        inputs: what comes into the pipeline, where it is kept.
        is_scheduled: it says when it waits for weights; a service, which appends at any time, does not.
    """

    def __init__(
        self,
        store: ExperienceStore,
        call: Call,
        *,
        buffer: str,
        name: str,
        scope: Mapping[str, str],
        inputs: PipelineInput | None = None,
        is_scheduled: bool = True,
    ) -> None:
        self.store = store
        self.buffer = buffer
        self.name = name
        self.scope = dict(scope)
        self._call = call
        self._inputs = inputs
        self._is_scheduled = is_scheduled

    async def open(self) -> None:
        """Announce the producer."""
        await self._call(
            self.store.open_producer, self.buffer, self.name, is_scheduled=self._is_scheduled, **self.scope
        )
        if self._inputs is not None:
            finished = await self._call(self.store.finished_step, self.buffer, self.name, **self.scope)
            await self._call(self._inputs.open, finished)

    async def close(self) -> None:
        """Say that nothing more will be appended."""
        await self._call(self.store.close_producer, self.buffer, self.name, **self.scope)
        if self._inputs is not None:
            await self._call(self._inputs.finish)

    async def release(self) -> None:
        """Close what the explorer has for itself."""
        if self._inputs is not None:
            await self._call(self._inputs.close)

    async def snapshot(self) -> str | None:
        """Return the explorer's newest snapshot, None if the store has none."""
        text: str | None = await self._call(self.store.snapshot, self.buffer, self.name, **self.scope)
        return text

    async def announce_wait(self, version: int) -> None:
        """Say that nothing more comes before weights of `version`."""
        await self._call(self.store.announce_wait, self.buffer, self.name, version, **self.scope)

    async def enter_batch(self, version: int, bound: StalenessBound, *, in_flight: int) -> UntrainedRollouts:
        """Record whether a batch begins on `version`; return what is untrained.

        The batch begins if the weights of `version` are new enough for `bound`.
        """
        now = {"version": version, "bound": bound, "in_flight": in_flight}
        untrained: UntrainedRollouts = await self._call(
            self.store.enter_batch, self.buffer, self.name, **self.scope, **now
        )
        return untrained

    async def append(
        self,
        experiences: Sequence[Experience],
        *,
        explore_step: int,
        snapshot: str,
        counts: Mapping[str, int],
        came: Sequence[Experience] = (),
    ) -> AppendResult:
        """Store a step's experiences and the explorer's snapshot after it.

        `counts` says what happened to its rollouts, by fate; `came` are the experiences that came into the pipeline.
        """
        step = {"producer": self.name, "explore_step": explore_step, "snapshot": snapshot, "counts": counts}
        inputs = self._inputs
        is_new = inputs is not None and await self._call(inputs.append, came, explore_step=explore_step)
        appended: AppendResult = await self._call(self.store.append, self.buffer, experiences, **step, **self.scope)
        if inputs is not None and is_new:
            await self._call(inputs.complete, came)
        return appended

    async def has_room(self, *, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds for room for another step.

        Return whether the buffer has room.
        """
        has_room: bool = await self._call(
            self.store.wait_for_room, self.buffer, self.name, timeout_s=wait_s, **self.scope
        )
        return has_room
