"""The explorer's side of a run: engines and the explorer.

Covers preparation, the run and the end.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.launch.served_adapter import serve_adapter
from trinity.launch.side import ProcessSpec, Side, folder_synchronizer, logger, open_monitor
from trinity.runtime.event_loop import LoopWatch

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel
    from trinity.explorer.explorer import Explorer
    from trinity.explorer.isolation.place import RunnerPlace
    from trinity.explorer.summary import ExploreSummary
    from trinity.synchronizer.base import Synchronizer

LOOP_GRACE_S = 10.0


class ExplorerSide(Side["ExploreSummary"]):
    """Engines and explorer of one stage.

    The synchronizer is the only connection to the trainer.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._engines: list[InferenceModel] = []
        self._explorer: Explorer | None = None
        self._place: RunnerPlace | None = None
        self._exploring: asyncio.Task[ExploreSummary] | None = None

    @classmethod
    def process(cls, config: Config) -> ProcessSpec:
        """Return the resources of the explorer's process, without the engines'."""
        return ProcessSpec(config.explorer.name)

    @classmethod
    def load(cls) -> None:
        """Import what preparation needs."""
        import trinity.buffer.buffer
        import trinity.engine.create
        import trinity.explorer.explorer  # noqa: F401

    @property
    def explorer(self) -> Explorer:
        """The explorer; there after `prepare`."""
        assert self._explorer is not None, "prepare() comes first"
        return self._explorer

    async def prepare(
        self,
        synchronizer: Synchronizer | None = None,
        *,
        resume: Path | None = None,
        explore_steps: int | None = None,
    ) -> int | None:
        """Load the engines and prepare the explorer.

        Return the explore steps of the whole run, or None if it has no end.

        Args:
            synchronizer: between the sides, or a handle of it; None: they run apart and meet in the folder of the job.
            resume: checkpoint to continue from.
            explore_steps: for the trainer.

        Raises:
            TrinityError: a model, a dataset or the store cannot be used.
        """
        from trinity.explorer.assembly import runner_place
        from trinity.explorer.explorer import Explorer

        config, store = self.config, await self._opened_store()
        synchronizer = synchronizer or folder_synchronizer(config, store)
        engine = self._made_engines()
        self._place = runner_place(config, engine, self._engines[1:], self.runtime)
        if self._place is not None:
            self._place.begin()
        self._monitor = open_monitor(config, config.explorer.name, self._on_metrics)
        self._explorer = Explorer(
            config,
            model=engine,
            auxiliary_models=self._engines[1:],
            store=store,
            synchronizer=synchronizer,
            monitor=self._monitor,
            resume=resume,
            place=self._place,
        )
        await self._prepare_engines()
        await self._make_tasks()
        await self._explorer.prepare()
        planned = self._explorer.planned_steps
        self._tell_total(config.explorer.name, planned, step=self._explorer.state.explore_step)
        return planned

    async def run(self) -> ExploreSummary:
        """Explore to the end, or until `request_stop`; return what was done.

        Raises:
            TrinityError: what ended the explorer.
        """
        exploring = asyncio.create_task(self.explorer.explore(), name=self.config.explorer.name)
        self._exploring = exploring
        if self._is_stopped:
            exploring.cancel()
        try:
            with self._loop_watch():
                await asyncio.wait((exploring,))
        finally:
            exploring.cancel()
            await asyncio.gather(exploring, return_exceptions=True)
        return self.explorer.summary if exploring.cancelled() else exploring.result()

    async def request_stop(self) -> None:
        """Abandon the rollouts under way.

        Stored results stay; a resumed run repeats the rest.
        """
        self._is_stopped = True
        if self._exploring is not None:
            self._exploring.cancel()

    async def close(self) -> None:
        """Close explorer, engines and an own store, whatever fails.

        Raises:
            Exception: the first failure to close.
        """
        explorer = [] if self._explorer is None else [self._explorer.close]
        if self._place is not None:
            self._place.close()
        await self._close((*explorer, *(engine.shutdown for engine in self._engines)))

    async def _opened_store(self) -> ExperienceStore:
        """Return the store, its copy in JSON lines complete."""
        from trinity.buffer.buffer import open_store

        if self._store is None:
            self._store = open_store(self.config)
        await asyncio.to_thread(self._complete_backup, self._store)
        return self._store

    def _made_engines(self) -> InferenceModel:
        """Make the engines, not yet prepared; return that of the rollout model."""
        from trinity.engine.create import create_auxiliary_models, create_inference_model

        engine = create_inference_model(self.config, self.runtime)
        self._engines = [engine, *create_auxiliary_models(self.config, self.runtime)]
        return engine

    async def _make_tasks(self) -> None:
        """Let the task pipeline write what the explorer reads."""
        if self.config.data_processor.task_pipeline is not None:
            from trinity.explorer.task_pipeline import process_tasks

            await asyncio.to_thread(process_tasks, self.config, self._engines[1:])

    async def _prepare_engines(self) -> None:
        for each in self._engines:
            await each.prepare()
        await serve_adapter(self.config, self._engines[0])

    def _complete_backup(self, store: ExperienceStore) -> None:
        """Update the JSON lines beside the store and log where they are."""
        if store.backup is None:
            return
        from trinity.explorer.assembly import experience_buffer, store_scope

        name, scope = self.config.explorer.name, dict[str, Any](store_scope(self.config))
        store.complete_backup(experience_buffer(self.config), producer=name, **scope)
        logger.info("experiences are written to %s", store.backup.path)

    def _loop_watch(self) -> LoopWatch:
        """Return the watch for asynchronous workflows that block the loop.

        The loop keeps the deadline of an attempt.
        """
        limit_s = self.config.explorer.max_timeout
        return LoopWatch(limit_s + LOOP_GRACE_S, what=f"explorer.max_timeout {limit_s:g} s and {LOOP_GRACE_S:g} s")
