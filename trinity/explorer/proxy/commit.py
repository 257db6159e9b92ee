"""From the record to the experience store: one explore step a commit.

The record and the store may be two databases. A crash between them neither loses nor repeats anything:

    record: rows are of step N --> store: append step N --> record: step N is committed
             |                        |                       |
    crash:   appended at the start    known to the store:     nothing to do
                                      marked at the start
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trinity.buffer.store.fates import ISSUED
from trinity.buffer.store.types import rollout_keys
from trinity.common.errors import ConfigError, TrinityError
from trinity.explorer.metrics import prefixed, summary, truncation_counts
from trinity.explorer.proxy.experiences import committed_experiences
from trinity.explorer.state import ExplorerState
from trinity.explorer.summary import ExploreSummary
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from sqlalchemy import Row

    from trinity.buffer.pipelines.experience_pipeline import ExperiencePipeline
    from trinity.common.experience import Experience
    from trinity.common.models.inference_model import InferenceModel
    from trinity.explorer.producer import Producer
    from trinity.explorer.proxy.models import CallerModels
    from trinity.explorer.proxy.record import CallRecord
    from trinity.monitor.monitor import Monitor
    from trinity.runtime.worker_thread import WorkerThread

logger = get_logger("explorer")


class FullBufferError(TrinityError):
    """The experience buffer has no room for a further explore step."""

    default_code = "E5223"


@dataclass(frozen=True)
class Committed:
    """What a commit did.

    Attributes:
        step: the last explore step in the store; of this commit if it had anything to commit.
        answers: recorded choices that were committed.
        experiences: that are new in the store.
        filtered: experiences that operators or the advantage function left out.
        waiting: recorded choices that have no reward and stay recorded.
    """

    step: int
    answers: int = 0
    experiences: int = 0
    filtered: int = 0
    waiting: int = 0

    def with_step(self, later: Committed) -> Committed:
        """Return both as one."""
        return Committed(
            later.step,
            self.answers + later.answers,
            self.experiences + later.experiences,
            self.filtered + later.filtered,
        )


class Committer:
    """Moves rewarded calls into the experience store.

    Its methods belong to one event loop.

    Args:
        record: the calls.
        io: the thread of blocking calls.
        producer: the explorer in the store.
        pipeline: what happens to experiences before they are stored.
        monitor: metrics of the explorer.
        engine: whose version the snapshot names.
        callers: whose counts are metrics.

    Attributes:
        state: where the explorer stands.
        summary: what was done by this process.
    """

    def __init__(
        self,
        record: CallRecord,
        io: WorkerThread,
        *,
        producer: Producer,
        pipeline: ExperiencePipeline,
        monitor: Monitor,
        engine: InferenceModel,
        callers: CallerModels,
    ) -> None:
        self.state = ExplorerState()
        self.summary = ExploreSummary(step=0)
        self._record, self._io = record, io
        self._producer, self._pipeline = producer, pipeline
        self._monitor, self._engine, self._callers = monitor, engine, callers
        self._lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Continue after the last step of the store; end what a crash left.

        Raises:
            ConfigError: the last steps of this name are those of mode explore (E1898).
        """
        text = await self._producer.snapshot()
        if text is not None:
            self.state = ExplorerState.from_json(json.loads(text))
        if self.state.readers:
            raise ConfigError(
                f"explorer {self._producer.name!r} of this job has explored tasks (mode explore); give the one of mode "
                "serve an explorer.name of its own",
                code="E1898",
            )
        self._pipeline.load_state_dict(self.state.pipeline)
        self.summary.step = self.state.explore_step
        await self._producer.open()
        await self._end_begun()

    async def _end_begun(self) -> Committed:
        """End a commit that a crash, or a database, has interrupted."""
        begun = await self._io.call(self._record.begun)
        if begun is None:
            return Committed(self.state.explore_step)
        step, rows = begun
        logger.info("explore step %d, with %d responses, was not fully committed: it is committed now", step, len(rows))
        if step > self.state.explore_step:
            return await self._append(step, rows)
        await self._io.call(self._record.finish, step)
        return Committed(self.state.explore_step)

    async def commit(self) -> Committed:
        """Append what is rewarded as one explore step, unless nothing is.

        Raises:
            FullBufferError: the trainer has to take something first; nothing was changed.
            TrinityError: an operator failed, or a database cannot be written; the calls stay rewarded.
        """
        async with self._lock:
            if not await self._producer.has_room(wait_s=0.0):
                raise FullBufferError(
                    f"buffer {self._producer.buffer!r} is full (capacity {self._producer.store.capacity}): the trainer "
                    "has to take something first; commit again later, or raise "
                    "buffer.trainer_input.experience_buffer.capacity"
                )
            done = await self._end_begun()
            step = self.state.explore_step + 1
            rows = await self._io.call(self._record.begin, step)
            if rows:
                done = done.with_step(await self._append(step, rows))
            counts = await self._io.call(lambda: self._record.counts)
            return replace(done, waiting=counts.waiting)

    async def _append(self, step: int, rows: Sequence[Row[Any]]) -> Committed:
        try:
            batch = f"{self._producer.name}/{step}"
            experiences = await self._io.call(committed_experiences, rows, batch=batch)
            processed = await self._pipeline.complete([await self._pipeline.operate(experiences)])
        except Exception:
            await self._io.call(self._record.undo, step)
            raise
        failpoint("serve.before_append")
        kept, own = processed.experiences, processed.metrics
        self.state.model_version = self._engine.model_version
        self.state.pipeline = self._pipeline.state_dict()
        after = {**self.state.as_json(), "explore_step": step}
        counts = processed.fates + Counter({ISSUED: len(rollout_keys(experiences))})
        appended = await self._producer.append(kept, explore_step=step, snapshot=json.dumps(after), counts=counts)
        self.state.explore_step = self.summary.step = step
        self.summary.experience_count += appended.appended
        failpoint("serve.after_append")
        await self._io.call(self._record.finish, step)
        failpoint("serve.after_commit")
        waiting = (await self._io.call(lambda: self._record.counts)).waiting
        metrics = _metrics(experiences) | prefixed("experience_pipeline", own) | appended.fates.metrics()
        metrics |= {
            "rollout/answer_count": len(rows),
            "rollout/unrewarded_count": waiting,
            "rollout/dropped_count": self._record.dropped_count,
            "rollout/foreign_turn_count": self._callers.foreign_turns,
            "rollout/forgotten_caller_count": self._callers.forgotten_count,
            "rollout/model_version": self._engine.model_version,
            "experience_pipeline/oversize_count": appended.quarantined,
        }
        self._monitor.log(metrics | prefixed("perf/engine", await self._engine_figures()), step=step)
        filtered = len(experiences) - len(kept)
        return Committed(step, len(rows), appended.appended, filtered)

    async def _engine_figures(self) -> dict[str, float]:
        """Return the totals of the engine; none if it has failed.

        What is committed stays so.
        """
        try:
            return await self._engine.stats()
        except TrinityError as error:
            logger.warning("a commit has no figures of the engine: %s", error)
            return {}


def _metrics(experiences: Sequence[Experience]) -> dict[str, float]:
    rewards = [experience.reward for experience in experiences if experience.reward is not None]
    return {
        **summary("rollout/reward", rewards),
        **summary("response_length", [experience.response_length for experience in experiences]),
        **summary("prompt_length", [experience.prompt_length for experience in experiences]),
        **truncation_counts(experiences, "rollout"),
    }
