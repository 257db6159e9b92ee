"""The service of mode serve: engines, record and commits in one.

caller --/v1/...--> engine --> record --/feedback, /commit--> experience store --> trainer
                      ^                                                              |
                      +---------------- weights of the newest version ---------------+
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.errors import DeadlineError, EngineError, SyncError, TrinityError
from trinity.explorer.assembly import build_pipeline, experience_buffer, store_scope
from trinity.explorer.producer import Producer
from trinity.explorer.proxy.commit import Committed, Committer
from trinity.explorer.proxy.health import EngineHealth
from trinity.explorer.proxy.models import CallerModels, RecordWriter
from trinity.explorer.proxy.record import Caller, CallRecord, Rewarded
from trinity.explorer.wrappers import auxiliary_wrappers, wrapper
from trinity.runtime.worker_thread import WorkerThread
from trinity.synchronizer.served import ServedWeights
from trinity.utils.deadline import within
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trinity.buffer.store import ExperienceStore
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel
    from trinity.explorer.summary import ExploreSummary
    from trinity.monitor.monitor import Monitor
    from trinity.synchronizer.base import Synchronizer

logger = get_logger("explorer")

FOLLOW_POLL_S = 0.2
CLOSE_S = 30.0
RECORD_FILE = "proxy_history.db"


def record_url(config: Config) -> str:
    """Return the database of recorded calls: as written, else the job's own."""
    folder = Path(config.buffer.cache_dir or Path(config.checkpoint_job_dir) / "buffer")
    return config.explorer.db_url or f"sqlite:///{folder / RECORD_FILE}"


class ProxyService:
    """Answers callers of outside, and makes experiences of what they reward.

    Its methods, but for those of `models` and `health`, belong to the event loop of the engines.

    Args:
        config: resolved configuration of the stage.
        engine: the rollout engine.
        auxiliary_models: engines that operators of the pipeline may ask.
        store: where experiences go.
        synchronizer: source of newer weights.
        monitor: metrics of the explorer.
        token: what callers have to send.

    Attributes:
        models: what the endpoint asks.
        health: whether enough engines answer.
    """

    def __init__(
        self,
        config: Config,
        *,
        engine: InferenceModel,
        auxiliary_models: Sequence[InferenceModel],
        store: ExperienceStore,
        synchronizer: Synchronizer,
        monitor: Monitor,
        token: str,
    ) -> None:
        self.config = config
        self.health = EngineHealth(config, engine)
        name, scope, limit = config.explorer.name, store_scope(config), config.explorer.rollout_model.history_limit
        self._engine, self._auxiliary = engine, tuple(auxiliary_models)
        self._io, self._record_io = WorkerThread(f"{name}_io"), WorkerThread(f"{name}_record")
        self._record = CallRecord(record_url(config), run=scope["run"], producer=name, limit=limit)
        buffer = experience_buffer(config)
        self._producer = Producer(store, self._io.call, buffer=buffer, name=name, scope=scope, is_scheduled=False)
        self._served = ServedWeights(synchronizer, engine, explorer=name)
        self._pipeline = build_pipeline(config)
        model = wrapper(config, engine)
        model.enable_history = False  # the record takes its place
        writer = RecordWriter(self._record, self._record_io)
        self.models = CallerModels(model, writer, token=token, refuse=self._refuse, limit=limit)
        self._committer = Committer(
            self._record,
            self._io,
            producer=self._producer,
            pipeline=self._pipeline,
            monitor=monitor,
            engine=engine,
            callers=self.models,
        )
        self._rewarded = 0
        self._started = time.monotonic()

    async def prepare(self) -> None:
        """Open the record, take the newest weights, and end what a crash left.

        Raises:
            TrinityError: the record, the store or an operator cannot be used.
        """
        os.environ.update(self.config.explorer.env_vars)
        await self._io.call(self._record.open)
        await self._pipeline.prepare()
        others = zip(
            self.config.explorer.auxiliary_models, auxiliary_wrappers(self.config, self._auxiliary), strict=True
        )
        self._pipeline.set_auxiliary_model({section.name or i: each for i, (section, each) in enumerate(others)})
        await self._follow_once()
        await self._committer.prepare()
        await self._count()

    async def serve(self) -> None:
        """Keep weights and health up to date; runs until it is cancelled.

        Raises:
            EnginesLostError: too few engines answer for too long.
        """
        following = asyncio.ensure_future(self._follow())
        try:
            while True:
                await self.health.check()
                await asyncio.wait({following}, timeout=self.health.interval_s)
                if following.done():
                    following.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def finish(self) -> None:
        """Say that nothing more will be committed."""
        await self._producer.close()

    async def close(self) -> None:
        """Release pipeline, record and threads."""
        try:
            await within(self._pipeline.close(), CLOSE_S)
        finally:
            await self._record_io.end()
            await self._io.end()
            self._record.close()

    # -------------------------------------------------------------- questions
    def is_token(self, token: str) -> bool:
        """Return whether it is that of callers."""
        return self.models.is_token(token)

    async def reward(self, reward: float, message_ids: list[str] | None, caller: Caller | None) -> Rewarded:
        """Give recorded answers a reward; see `CallRecord.reward`."""
        done = await self._io.call(self._record.reward, reward, message_ids=message_ids, caller=caller)
        failpoint("serve.after_feedback")
        await self._count()
        return done

    async def commit(self) -> Committed:
        """Append what is rewarded to the store; see `Committer.commit`."""
        done = await self._committer.commit()
        await self._count()
        return done

    async def status(self) -> dict[str, Any]:
        """Return how the service is, as plain values."""
        counts = await self._io.call(lambda: self._record.counts)
        return {
            "status": "ok" if self.health.problem() is None else self.health.problem(),
            "model": self.config.explorer.rollout_model.name or self.config.model.model_path,
            "model_version": self._engine.model_version,
            "engines": self.config.explorer.rollout_model.engine_num,
            "engines_serving": self.health.serving,
            "explore_step": self._committer.state.explore_step,
            "answer_count": self.models.answer_count,
            "unrewarded_count": counts.waiting,
            "rewarded_count": counts.rewarded,
            "dropped_count": self._record.dropped_count,
            "history_limit": self._record.limit,
            "experience_count": self.summary.experience_count,
            "other_temperature_count": self.models.temperature_count,
            "foreign_turn_count": self.models.foreign_turns,
            "forgotten_caller_count": self.models.forgotten_count,
            "uptime_s": round(time.monotonic() - self._started, 3),
        }

    @property
    def summary(self) -> ExploreSummary:
        """What was done."""
        return self._committer.summary

    # ---------------------------------------------------------------- private
    def _refuse(self) -> None:
        """Raise if no call can be answered now.

        Raises:
            EngineError: too few engines (E5637), or the record is full of what waits for a commit (E5639).
        """
        self.health.refuse()
        if self._rewarded >= self._record.limit:
            raise EngineError(
                f"{self._rewarded} rewarded responses wait for /commit, the most that the record holds "
                "(explorer.rollout_model.history_limit); commit them first",
                code="E5639",
            )

    async def _count(self) -> None:
        self._rewarded = (await self._io.call(lambda: self._record.counts)).rewarded

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_POLL_S)
            await self._follow_once()

    async def _follow_once(self) -> None:
        """Let the engines take the newest weights of a trainer, if there are any.

        A version that cannot be loaded is reported, and tried again: callers get the version that there is.
        """
        before = self._engine.model_version
        try:
            await self._served.take_newest()
        except (SyncError, DeadlineError) as error:
            self._tell_of(error)
            return
        self._told = ""
        if self._engine.model_version != before:
            logger.info("responses come from model version %d now", self._engine.model_version)

    def _tell_of(self, error: TrinityError) -> None:
        if str(error) != self._told:
            self._told = str(error)
            logger.warning("responses still come from model version %d: %s", self._engine.model_version, error)

    _told = ""
