"""Placement of a stage's sides: in this process or on a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trinity.common.constants import BENCH
from trinity.common.errors import EnvironmentProblem
from trinity.launch.parts import part_of
from trinity.launch.process_setup import THIS_MACHINE, process_setup
from trinity.launch.remote_side import RemoteSide
from trinity.launch.side import MetricsListener, R, RolloutsListener, Side, StageSide
from trinity.runtime.base import ActorDiedError, Handle, Resources, Runtime
from trinity.runtime.cluster import ClusterRequest
from trinity.runtime.head_watch import ClusterLostError, HeadWatch, lost
from trinity.runtime.local import LocalRuntime
from trinity.runtime.scratch import Scratch
from trinity.synchronizer.local import LocalSynchronizer
from trinity.synchronizer.schedule import sync_schedule

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.common.config import Config
    from trinity.synchronizer.base import Synchronizer

LOST_GRACE_S = 2.0

T = TypeVar("T")


def make_synchronizer(config: Config) -> LocalSynchronizer:
    """Return the synchronizer of a stage."""
    return LocalSynchronizer(sync_schedule(config), timeout_s=config.synchronizer.sync_timeout)


class Placement(Protocol):
    """Where the sides of a stage are.

    Attributes:
        runtime: places what a side needs beside itself.
    """

    runtime: Runtime

    async def side(
        self,
        cls: type[Side[R]],
        *,
        on_metrics: MetricsListener | None,
        on_rollouts: RolloutsListener | None = None,
        **arguments: Any,
    ) -> StageSide[R]:
        """Return a side of the stage.

        Args:
            cls: of the side.
            on_metrics: called with actor name, step and values of every logged line.
            on_rollouts: called now and then with the newest rollouts, or why there are none, where this process cannot
                read them; None: nobody wants them.
            arguments: of the class.
        """

    async def synchronizer(self) -> Synchronizer:
        """Return the synchronizer between the sides."""

    async def wait_lost(self) -> None:
        """Wait until the synchronizer is lost.

        Raises:
            ActorDiedError: it is (E5701).
        """

    def shared_store(self) -> contextlib.AbstractContextManager[ExperienceStore | None]:
        """Return the store that the sides share; None: each opens it."""

    def log_files(self) -> dict[Path, str]:
        """Return the log files of this process, with the logger of each."""

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which ends when the sides are lost."""

    async def close(self) -> None:
        """End what the runtime started."""


class LocalPlacement:
    """Sides in this process, one loop for all.

    Args:
        config: resolved configuration of the stage.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        divides_gpus = bool(config.cluster.total_gpu_num)
        self.runtime: Runtime = LocalRuntime(process_setup(config, has_console=False), divides_gpus=divides_gpus)

    async def side(
        self,
        cls: type[Side[R]],
        *,
        on_metrics: MetricsListener | None = None,
        on_rollouts: RolloutsListener | None = None,
        **arguments: Any,
    ) -> StageSide[R]:
        """Return a side of the stage."""
        return cls(self.config, self.runtime, on_metrics=on_metrics, **arguments)

    async def synchronizer(self) -> Synchronizer:
        """Return the synchronizer of the stage."""
        return make_synchronizer(self.config)

    async def wait_lost(self) -> None:
        """Wait for ever: a synchronizer in this process is not lost."""
        await asyncio.Event().wait()

    def shared_store(self) -> contextlib.AbstractContextManager[ExperienceStore | None]:
        """Return the store of both sides."""
        from trinity.buffer.buffer import open_store

        return open_store(self.config)

    def log_files(self) -> dict[Path, str]:
        """Return a file for the run and one a side; a part has one."""
        config, part = self.config, part_of(self.config)
        names = {part: ""} if part else {"run": "", config.explorer.name: "explorer", config.trainer.name: "trainer"}
        folder = Path(config.checkpoint_job_dir) / "log"
        if config.log.group_by_node:
            folder /= THIS_MACHINE
        return {folder / f"{name}.log": logger for name, logger in names.items()}

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`."""
        return await work

    async def close(self) -> None:
        """End what the runtime started."""
        await self.runtime.close()


class ClusterPlacement:
    """Sides and synchronizer in their own processes on this machine.

    Args:
        config: resolved configuration of the stage.
        runtime: starts them.
        node: address of this machine in the cluster.
        head: address of the cluster's head.
    """

    def __init__(self, config: Config, runtime: Runtime, node: str, *, head: str) -> None:
        self.config = config
        self.runtime = runtime
        self.node = node
        self.head = head
        self.lost = threading.Event()
        self._synchronizer: Handle | None = None

    async def synchronizer(self) -> Synchronizer:
        """Return a handle of the stage's synchronizer."""
        place = Resources(node=self.node)
        self._synchronizer = await self.runtime.start(
            make_synchronizer, self.config, name="synchronizer", resources=place
        )
        forwarding: Any = self._synchronizer
        synchronizer: Synchronizer = forwarding
        return synchronizer

    async def wait_lost(self) -> None:
        """Wait until the process of the synchronizer is gone.

        Raises:
            ActorDiedError: it is (E5701).
        """
        gone = self._synchronizer
        assert gone is not None, "synchronizer() comes first"
        cause = await gone.wait_dead()
        raise ActorDiedError(f"{gone.name} (process {gone.pid} on {gone.node}) is gone: {cause}")

    def shared_store(self) -> contextlib.AbstractContextManager[None]:
        """Return no store: each process opens it."""
        return contextlib.nullcontext()

    def log_files(self) -> dict[Path, str]:
        """Return the file of the run; each process writes its own."""
        part = part_of(self.config)
        return {Path(self.config.checkpoint_job_dir) / "log" / (f"run_{part}.log" if part else "run.log"): ""}

    async def side(
        self,
        cls: type[Side[R]],
        *,
        on_metrics: MetricsListener | None = None,
        on_rollouts: RolloutsListener | None = None,
        **arguments: Any,
    ) -> StageSide[R]:
        """Return a side of the stage in its own process; it opens the store."""
        spec = cls.process(self.config)
        handle = await self.runtime.start(
            cls,
            self.config,
            self.runtime,
            name=spec.name,
            resources=Resources(node=self.node, num_gpus=spec.num_gpus),
            has_process=True,
            **arguments,
        )
        return RemoteSide[R](handle, on_metrics, self.lost, on_rollouts=on_rollouts)

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which ends when the cluster loses its head.

        Raises:
            ClusterLostError: it has (E5706).
        """
        loop = asyncio.get_running_loop()
        working, gone = asyncio.ensure_future(work), loop.create_future()

        def tell() -> None:
            self.lost.set()
            with contextlib.suppress(RuntimeError):  # the loop was closed: the run has ended meanwhile
                loop.call_soon_threadsafe(gone.set_result, None)

        with HeadWatch(self.head, tell):
            try:
                await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    working.cancel()
                    await asyncio.wait((working,), timeout=LOST_GRACE_S)
                    raise lost(self.head)
                return working.result()
            finally:
                working.cancel()

    async def close(self) -> None:
        """End what the runtime started.

        Without the cluster's head no process can be reached, and all end by themselves.
        """
        if not self.lost.is_set():
            await self.runtime.close()


@contextlib.contextmanager
def placed(config: Config) -> Iterator[Placement]:
    """Yield the placement of a stage.

    On a cluster, join or start it before and leave it afterwards.

    Raises:
        EnvironmentProblem: the runtime is ray and ray is not installed (E3301), or there is no cluster that fits.
    """
    if config.cluster.runtime != "ray":
        yield LocalPlacement(config)
        return
    try:
        from trinity.runtime import ray as cluster
    except ImportError as error:
        raise EnvironmentProblem(
            f"cluster.runtime: ray needs the package ray ({error}); install it with `pip install 'trinity-rft[ray]'`, "
            "or use --set cluster.runtime=local",
            code="E3301",
        ) from error
    with Scratch(os.environ.get("RAY_TMPDIR", "")) as scratch:
        try:
            with _joined(config, cluster, str(scratch.path)) as place:
                yield place
        except BaseException:
            _keep(scratch.path / "session_latest" / "logs", Path(config.checkpoint_job_dir) / "log" / "ray")
            raise


def _keep(logs: Path, where: Path) -> None:
    """Copy the logs of Ray's own processes.

    They may explain a failed run, and Ray's session ends with the run.
    """
    if logs.is_dir():
        with contextlib.suppress(OSError):  # sockets, files that go, a full disk: what failed is told all the same
            shutil.copytree(logs, where, dirs_exist_ok=True)


@contextlib.contextmanager
def _joined(config: Config, cluster: ModuleType, folder: str) -> Iterator[ClusterPlacement]:
    """Yield the placement in a running cluster.

    Without one, use a new cluster whose sessions are in `folder`.
    """
    has_timeline = config.monitor.enable_ray_timeline
    address = cluster.connect(
        ClusterRequest(
            config.cluster.ray_address,
            config.ray_namespace,
            node_num=config.cluster.node_num,
            gpu_per_node=config.cluster.gpu_per_node,
            has_timeline=has_timeline,
            is_part=part_of(config) not in (None, BENCH),
            folder=folder,
        )
    )
    is_lost = False
    try:
        runtime = cluster.RayRuntime(config.ray_namespace, process_setup(config, has_console=True))
        yield ClusterPlacement(config, runtime, cluster.this_node(), head=address)
    except ClusterLostError:
        is_lost = True
        raise
    finally:
        file = Path(config.checkpoint_job_dir) / "monitor" / "timeline.json"
        cluster.disconnect(file if has_timeline else None, is_lost=is_lost)
