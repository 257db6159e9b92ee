"""Where runner processes start, and which runner is in which process."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trinity.common.config import Config
from trinity.common.errors import WorkflowError
from trinity.explorer.isolation.child import RunnerProcess
from trinity.explorer.isolation.shared import SharedProcess
from trinity.runtime.base import START_TIMEOUT_S, Handle, Resources, Runtime
from trinity.utils.deadline import bounded
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.models.inference_model import InferenceModel

logger = get_logger("explorer")


class RunnerPlace:
    """The processes of a scheduler's runners.

    Runner number i is in process i modulo their number: as many as there are cores, unless
    `explorer.runners_per_process` says how many runners share one.

    One more process is kept ready, so that a process that is retired or killed is replaced at once: a start takes
    seconds. It begins when the first process has started, and again whenever it was used.

    Args:
        runtime: starts the processes.
        config: the run's configuration.
        engines: the rollout model's, then those of the auxiliary models.
        runner_count: runners of the scheduler.
    """

    def __init__(
        self, runtime: Runtime, config: Config, engines: Sequence[InferenceModel], *, runner_count: int
    ) -> None:
        self.config = config
        self.engines = tuple(engines)
        self._runtime = runtime
        self._numbers = itertools.count()
        self._slots = itertools.count()
        self._alive: set[SharedProcess] = set()
        self._spare: SharedProcess | None = None
        each = config.explorer.runners_per_process
        count = min(runner_count, runtime.core_count) if each is None else -(-runner_count // each)
        self._processes = [self._new() for _ in range(count)]
        self._gate = asyncio.Semaphore(config.explorer.runner_prepare_concurrency)

    @property
    def versions(self) -> list[int]:
        """Versions of the weights that the engines serve."""
        return [engine.model_version for engine in self.engines]

    def begin(self) -> None:
        """Start the processes, and wait for none: the engines may load meanwhile."""
        for process in self._processes:
            process.begin()

    def assign(self) -> int:
        """Return the slot of one more runner."""
        return next(self._slots)

    def process(self, slot: int) -> SharedProcess:
        """Return the process of a slot; another one where the last was retired."""
        index = slot % len(self._processes)
        if self._processes[index].is_retired:
            self._processes[index] = self._replacement()
        return self._processes[index]

    def alone(self) -> SharedProcess:
        """Return an unused process for one runner."""
        return self._replacement()

    def retire(self, process: SharedProcess) -> bool:
        """Retire a process, which ends once its attempts have ended.

        Return False if it was already retired.
        """
        is_first = not process.is_retired
        process.retire()
        return is_first

    async def lose(self, process: SharedProcess) -> bool:
        """Kill a process and its attempts; return False if it was retired."""
        is_first = not process.is_retired
        await process.kill()
        return is_first

    def forget(self, process: SharedProcess) -> None:
        """Leave out of `close` a process that has ended."""
        self._alive.discard(process)

    def close(self) -> None:
        """Release all processes without waiting for their end.

        This includes processes that are retired and still working.
        """
        for process in list(self._alive):
            process.close()

    async def ask(self, engine: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, Any]:
        """Call an engine's method; return its weights version and the result.

        Args:
            engine: 0 for the rollout model, then the auxiliary models.
            method: of the engine.
            args: positional arguments.
            kwargs: arguments by name.
        """
        asked = self.engines[engine]
        value = getattr(asked, method)(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        return asked.model_version, value

    async def start(self, name: str) -> Handle:
        """Return the process of runners called `name`, ready for work.

        Raises:
            WorkflowError: it did not start in `runner_prepare_max_retries` + 1 attempts (E5634).
        """
        explorer = self.config.explorer
        failure: Exception | None = None
        async with self._gate:
            for _ in range(explorer.runner_prepare_max_retries + 1):
                try:
                    handle = await self._runtime.start(
                        RunnerProcess,
                        self.config,
                        name=f"{explorer.name}_{name}",
                        resources=Resources(env=explorer.env_vars, own_process=True),
                        engine_count=len(self.engines),
                    )
                    await bounded(handle.prepare(), START_TIMEOUT_S, what=name, setting="START_TIMEOUT_S")
                # Whatever keeps a process from starting may pass; the last reason is in the error.
                except Exception as error:  # noqa: BLE001
                    logger.warning("the process %s did not start: %s", name, error)
                    failure = error
                else:
                    self._keep_spare()
                    return handle
        raise WorkflowError(
            f"the process {name} did not start in {explorer.runner_prepare_max_retries + 1} attempts "
            f"(explorer.runner_prepare_max_retries + 1): {failure}",
            code="E5634",
        ) from failure

    def _replacement(self) -> SharedProcess:
        """Return the spare process, or a new one if it is gone."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.is_lost:
            spare.retire()
            spare = None
        replacement = self._new() if spare is None else spare
        self._keep_spare()
        return replacement

    def _keep_spare(self) -> None:
        """Start a spare process if there is none; wait for nothing."""
        if self._spare is None:
            self._spare = self._new()
            self._spare.begin()

    def _new(self) -> SharedProcess:
        process = SharedProcess(f"runners_{next(self._numbers)}", self)
        self._alive.add(process)
        return process
