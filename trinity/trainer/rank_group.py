"""The back end of several ranks: every call goes to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.config import Config
from trinity.common.config.resolved import num_workers
from trinity.common.constants import Mode
from trinity.common.experience import Experience
from trinity.engine.create import SHARE_OF_ENGINES
from trinity.runtime.base import ActorDiedError, Resources
from trinity.trainer.backend import LocalBackend, TrainerBackend
from trinity.trainer.rank_worker import TIMEOUT_KEY, RankError, RankWorker
from trinity.trainer.verl.shard_settings import needs_group
from trinity.utils.deadline import within
from trinity.utils.log import get_logger
from trinity.utils.meeting import LOOPBACK

if TYPE_CHECKING:
    from trinity.runtime.base import Handle, Runtime

logger = get_logger("trainer")

PING_EVERY_S = 5.0
OTHERS_GRACE_S = 3.0  # wait for the errors of the other ranks, one of which may be the cause
DIAGNOSIS_S = 2.0
LEAVE_S = 5.0


class RankGroup:
    """`world` ranks, each in its own process; see `TrainerBackend`.

        call --> all ranks --> all return ------------------------------> results
                     |
                     +------> one fails, or does not answer a ping --> kill all ranks, raise the cause

    After a failure every further call raises the same cause.

    Args:
        config: resolved configuration of the stage.
        runtime: starts the processes.
        world: number of ranks.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(self, config: Config, *, runtime: Runtime, world: int, device: str = "auto") -> None:
        self.config = config
        self.runtime = runtime
        self.world = world
        self.device = device
        self.timeout_s = config.trainer.rank_timeout
        self.handles: list[Handle] = []
        self._failure: BaseException | None = None
        self._lock = asyncio.Lock()  # every rank gets the calls in the same order
        self._facts: tuple[dict[str, str], bool] = {}, True

    def reference(self) -> dict[str, str]:
        """Return path and hash of the reference model; see `TrainerBackend`."""
        return self._facts[0]

    def is_healthy(self) -> bool:
        """Return whether the last steps were taken; see `TrainerBackend`."""
        return self._facts[1]

    async def prepare(self, total_steps: int | None) -> None:
        """Start and connect the ranks, and load the model on each of them.

        Raises:
            ActorDiedError: a rank's process ended.
            RankError: the ranks did not find each other.
        """
        self.handles = await self.runtime.group(
            RankWorker,
            self.world,
            self.config.model_dump(exclude_unset=True),
            name=f"{self.config.trainer.name}_rank",
            resources=Resources(num_gpus=gpus_of_rank(self.config, self.world), own_process=True),
            num_threads=max(1, torch.get_num_threads() // self.world),
            world=self.world,
            patience_s=self.timeout_s,
            device=self.device,
        )
        logger.info("trainer on %d ranks, processes %s", self.world, ", ".join(str(h.pid) for h in self.handles))
        first = self.handles[0]
        host = LOOPBACK if len({handle.node for handle in self.handles}) == 1 else first.node
        address = await within(first.open_meeting(host), self.timeout_s)
        await self._all("join", address)
        await self._all("prepare", total_steps)
        self._facts = (await self._all("facts"))[0]

    async def train_step(self, experiences: Sequence[Experience], step: int) -> dict[str, float]:
        """Train on all ranks; see `TrainerBackend`.

        Raises:
            ActorDiedError: a rank's process ended (E5701).
            RankError: the ranks lost each other (E5682), or one does not answer (E5683).
        """
        metrics: dict[str, float] = (await self._all("train_step", list(experiences), step))[0]
        self._facts = (await self._all("facts"))[0]
        return metrics

    async def weights(self) -> Mapping[str, Tensor]:
        """Return a copy of the full weights, in memory that the first rank wrote."""
        ref = (await self._all("share_weights", self.runtime.objects))[0]
        weights: Mapping[str, Tensor] = await asyncio.to_thread(ref.load)
        return weights

    async def save(self, folder: Path, *, hf: bool) -> None:
        """Let every rank write its part into `folder`; see `TrainerBackend`."""
        await self._all("save", folder, hf=hf)

    async def load(self, folder: Path) -> None:
        """Restore all ranks from a checkpoint; see `TrainerBackend`."""
        await self._all("load", folder)
        self._facts = (await self._all("facts"))[0]

    async def close(self) -> None:
        """End the ranks' processes; kill those that are still computing."""
        handles, self.handles = self.handles, []
        if not handles:
            return
        if self._failure is None:
            await _within(LEAVE_S, [handle.leave() for handle in handles])
            for handle in handles:
                handle.let_go()
            await _within(LEAVE_S, [handle.wait_dead() for handle in handles])
        await asyncio.gather(*(handle.kill() for handle in handles), return_exceptions=True)

    # ------------------------------------------------------------------- calls
    async def _all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call `method` on every rank; return the results in rank order.

        The first failure ends the group. If the caller is cancelled, the call still runs to its end: ranks that were
        interrupted at different points could not continue together.
        """
        work = asyncio.ensure_future(self._all_now(method, args, kwargs))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(work)

    async def _all_now(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        async with self._lock:
            return await self._ask(method, args, kwargs)

    async def _ask(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        calls = [asyncio.ensure_future(getattr(handle, method)(*args, **kwargs)) for handle in self.handles]
        watch = asyncio.ensure_future(self._watch())
        together = asyncio.gather(*calls)
        try:
            await asyncio.wait((together, watch), return_when=asyncio.FIRST_COMPLETED)
            if together.done() and together.exception() is None:
                return together.result()
            await asyncio.wait(calls, timeout=OTHERS_GRACE_S)
            errors = [task.exception() for task in (watch, *calls) if task.done() and not task.cancelled()]
            self._failure = await self._cause([error for error in errors if error is not None])
            raise self._failure
        finally:
            for task in (together, watch, *calls):
                task.cancel()
            await asyncio.gather(together, watch, *calls, return_exceptions=True)
            if self._failure is not None:
                await asyncio.gather(*(handle.kill() for handle in self.handles), return_exceptions=True)

    async def _cause(self, errors: list[BaseException]) -> BaseException:
        """Return the error that explains the others.

        Prefer the death of a process, then an error other than `RankError`, then a rank that does not answer.
        """
        for kind in (ActorDiedError, None):
            for error in errors:
                if isinstance(error, kind) if kind else not isinstance(error, RankError):
                    return error
        silent = await self._silent(DIAGNOSIS_S)
        if silent:
            names = ", ".join(f"{handle.name} (process {handle.pid})" for handle in silent)
            return RankError(
                f"{names} does not answer for {TIMEOUT_KEY} {self.timeout_s:g} s while the others wait for it: it was "
                f"stopped or hangs; see its lines in the log, or raise {TIMEOUT_KEY}",
                code="E5683",
            )
        return errors[0]

    async def _watch(self) -> None:
        """Ping the ranks until one does not answer in time.

        Raises:
            RankError: a rank did not answer within `trainer.rank_timeout` seconds.
        """
        while True:
            await asyncio.sleep(min(PING_EVERY_S, self.timeout_s / 4))
            if await self._silent(self.timeout_s):
                raise RankError(f"a rank does not answer for {TIMEOUT_KEY} {self.timeout_s:g} s")

    async def _silent(self, limit_s: float) -> list[Handle]:
        """Return the ranks that do not answer within `limit_s` seconds."""
        pings = [asyncio.ensure_future(handle.ping()) for handle in self.handles]
        try:
            await asyncio.wait(pings, timeout=limit_s)
            pairs = zip(self.handles, pings, strict=True)
            return [handle for handle, ping in pairs if not ping.done()]
        finally:
            for ping in pings:
                ping.cancel()
            await asyncio.gather(*pings, return_exceptions=True)


def has_ranks(config: Config) -> bool:
    """Return whether training runs in rank processes, even in a single one.

    A single one is needed on a GPU if `needs_group` says so.
    """
    if num_workers(config) > 1:
        return True
    return needs_group(config) and (bool(config.cluster.trainer_gpu_num) or torch.cuda.is_available())


def gpus_of_rank(config: Config, world: int) -> float:
    """Return the number of GPUs that a scheduler reserves for one rank.

    It is a fraction if the whole run shares one GPU, and 0 if the trainer has fewer GPUs than ranks.
    """
    cluster = config.cluster
    if world == 1 and cluster.total_gpu_num == 1 and config.mode == Mode.BOTH:
        return 1 - SHARE_OF_ENGINES
    return 1.0 if (cluster.trainer_gpu_num or 0) >= world else 0.0


def backend_of(config: Config, *, tokenizer: PreTrainedTokenizerBase | None, runtime: Runtime | None) -> TrainerBackend:
    """Return the back end of a run, not yet prepared.

    It is one worker in this process, or ranks that `runtime` starts. A single worker on a GPU that keeps its weights in
    host memory during a step is a rank, too.
    """
    world = num_workers(config)
    if not has_ranks(config):
        return LocalBackend(config, tokenizer=tokenizer)
    assert runtime is not None, "several ranks need a runtime that starts their processes"
    return RankGroup(config, runtime=runtime, world=world)


async def _within(limit_s: float, works: list[Any]) -> None:
    """Wait at most `limit_s` seconds, then cancel `works`; ignore errors."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks, timeout=limit_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
