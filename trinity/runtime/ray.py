"""Components as named actors of a Ray cluster.

Only this module, `ray_objects` and `ray_token` import ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray.exceptions import AuthenticationError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trinity.common.errors import EnvironmentProblem
from trinity.runtime import cluster, head_watch
from trinity.runtime.base import (
    CLOSE_GRACE_S,
    NODE_ENV_VAR,
    START_TIMEOUT_S,
    ActorDiedError,
    Handle,
    Order,
    Resources,
    Setup,
    public_name,
)
from trinity.runtime.collector import collect_seldom
from trinity.runtime.failure import Failure
from trinity.runtime.host import ActorHost
from trinity.runtime.process import start_together
from trinity.runtime.ray_objects import RayObjects, register_tensors
from trinity.runtime.ray_token import TokenMode
from trinity.utils.deadline import within
from trinity.utils.log import get_logger

logger = get_logger("launch")

MAX_CONCURRENCY = 4096
KILL_WAIT_S = 10.0
HEARD_S = 1.0
NAME_WAIT_S = 10.0
POLL_S = 0.1
SMALLEST_CPU = 0.001  # a bundle of a placement group must reserve something


class _Actor(ActorHost):
    """What runs in an actor's process: one component."""

    async def prepare(self, setup: Setup | None, env: Mapping[str, str]) -> dict[str, Any]:
        collect_seldom()
        node = ray.util.get_node_ip_address()
        await self.set_up(setup, {NODE_ENV_VAR: node, **env})
        head_watch.leave_with(ray.get_runtime_context().gcs_address, repr(self))
        return {"node": node, "node_id": this_node(), **cluster.process_facts()}

    async def run(self, number: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = await super().run(number, name, args, kwargs)
        register_tensors()
        return value


class RayHandle:
    """Handle of an actor, which may be passed to other actors.

    See `trinity.runtime.base.Handle`.

    Args:
        name: of the component.
        actor: Ray's handle.
        facts: what the actor said of its process.
    """

    def __init__(self, name: str, actor: Any, facts: Mapping[str, Any]) -> None:
        self.name = name
        self.pid: int = facts["pid"]
        self.node: str = facts["node"]
        self._facts = dict(facts)
        self._actor = actor
        self._numbers = (f"{uuid.uuid4().hex}-{number}" for number in itertools.count())

    def __reduce__(self) -> tuple[Any, ...]:
        return RayHandle, (self.name, self._actor, self._facts)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        public_name(name, self.__dict__.get("name", "component"))

        async def call(*args: Any, **kwargs: Any) -> Any:
            number = next(self._numbers)
            register_tensors()
            try:
                value = await self._actor.run.remote(number, name, args, kwargs)
            except asyncio.CancelledError:
                self._actor.cancel.remote(number)
                raise
            except RayActorError as error:
                raise self._death(error) from None
            if isinstance(value, Failure):
                raise value.error()
            return value

        return call

    async def kill(self) -> None:
        """End the actor's process with SIGKILL."""
        ray.kill(self._actor)
        with contextlib.suppress(TimeoutError):
            await within(self.wait_dead(), HEARD_S)
            return
        await self._kill_process()  # one that is stopped or holds the interpreter does not hear of Ray's kill
        try:
            await within(self.wait_dead(), KILL_WAIT_S)
        except TimeoutError as error:
            raise cluster.still_there(self, KILL_WAIT_S) from error

    async def _kill_process(self) -> None:
        place = NodeAffinitySchedulingStrategy(self._facts["node_id"], soft=False)
        killing = ray.remote(cluster.kill).options(num_cpus=0, scheduling_strategy=place).remote(self.pid)
        with contextlib.suppress(TimeoutError, RayError):
            await within(_result(killing), KILL_WAIT_S)

    async def wait_dead(self) -> str:
        """Return the cause of death, when the actor is gone."""
        try:
            await self._actor.watch.remote()
        except RayActorError as error:
            return self._cause(error)
        raise AssertionError("the watch of an actor ends with the actor only")

    def let_go(self) -> None:
        """End the actor; wait for nothing."""
        ray.kill(self._actor)

    def _death(self, error: RayActorError) -> ActorDiedError:
        return ActorDiedError(f"{self.name} (process {self.pid} on {self.node}) is gone: {self._cause(error)}")

    def _cause(self, error: RayActorError) -> str:
        return cluster.death_cause(str(error)) + cluster.last_words(self._facts["errors"])


async def _result(ref: Any) -> Any:
    return await ref


class RayRuntime:
    """Places each component in an actor.

    See `trinity.runtime.base.Runtime`. An instance may be passed to an actor.

    An actor lives no longer than the process that started it.

    Args:
        namespace: of the names.
        setup: what every process does before it makes its component.
    """

    is_local = False

    def __init__(self, namespace: str, setup: Setup | None = None) -> None:
        self.namespace = namespace
        self.objects = RayObjects()
        self._setup = setup
        self._handles: list[RayHandle] = []
        self._groups: list[PlacementGroup] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return RayRuntime, (self.namespace, self._setup)

    @property
    def core_count(self) -> int:
        """CPU cores of the cluster."""
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    async def start(self, cls: Callable[..., Any], *args: Any, **how: Any) -> Handle:
        """Return a handle of `cls(*args, **kwargs)` in an actor."""
        order = Order.of(cls, args, how)
        cluster.check_gpus({order.name: order.resources.num_gpus}, _machines())
        node = order.resources.node
        place = None if node is None else NodeAffinitySchedulingStrategy(_node_id(node), soft=False)
        return await self._start(order, place or order.resources.place)

    async def _start(self, order: Order, place: Any) -> Handle:
        name, wants = order.name, order.resources
        await self._until_free(name)
        actor: Any = (
            ray.remote(_Actor)
            .options(
                name=name,
                namespace=self.namespace,
                num_cpus=wants.num_cpus,
                num_gpus=wants.num_gpus,
                max_concurrency=MAX_CONCURRENCY,
                max_restarts=0,
                **({} if place is None else {"scheduling_strategy": place}),
            )
            .remote(name)
        )
        try:
            facts, made = await within(self._construct(actor, order), order.timeout_s)
        except TimeoutError as error:
            ray.kill(actor)
            raise cluster.late(f"{name} did not start", wants, timeout_s=order.timeout_s, free=_free()) from error
        except RayActorError as error:
            raise ActorDiedError(f"{name} is gone before it was ready: {cluster.death_cause(str(error))}") from error
        except BaseException:
            ray.kill(actor)
            raise
        handle = RayHandle(name, actor, facts)
        if isinstance(made, Failure):
            ray.kill(actor)
            raise made.error()
        self._handles.append(handle)
        gpus = f" with GPU {facts['gpus']}" if facts["gpus"] else ""
        logger.info("%s is process %d on %s%s", name, handle.pid, handle.node, gpus)
        return handle

    async def _construct(self, actor: Any, order: Order) -> tuple[dict[str, Any], Failure | None]:
        register_tensors()
        facts = await actor.prepare.remote(self._setup, order.resources.environment(divides_gpus=True))
        return facts, await actor.construct.remote(order.cls, order.args, order.kwargs)

    async def group(self, cls: Callable[..., Any], count: int, *args: Any, **how: Any) -> list[Handle]:
        """Return handles of `count` components in one placement group.

        Each has a bundle of the group.
        """
        order = Order.of(cls, args, how)
        places = await self.reserve(count, name=order.name, resources=order.resources, timeout_s=order.timeout_s)
        try:
            pairs = zip(order.ranks(count), places, strict=True)
            return await start_together([self._start(each, wants.place) for each, wants in pairs])
        except BaseException:
            group = places[0].place.placement_group
            self._groups.remove(group)
            remove_placement_group(group)
            raise

    async def reserve(
        self, count: int, *, name: str, resources: Resources, timeout_s: float = START_TIMEOUT_S
    ) -> list[Resources]:
        """Return resources of `count` components in one placement group.

        Each has a bundle of the group.
        """
        cluster.check_gpus({f"{name}_{index}": resources.num_gpus for index in range(count)}, _machines())
        gpus = {"GPU": resources.num_gpus} if resources.num_gpus else {}
        bundle = {"CPU": max(resources.num_cpus, SMALLEST_CPU)} | gpus
        group = placement_group([dict(bundle) for _ in range(count)], strategy="PACK")
        try:
            await within(_result(group.ready()), timeout_s)
        except TimeoutError as error:
            remove_placement_group(group)
            what = f"{count} places of {name} were not free"
            raise cluster.late(what, resources, timeout_s=timeout_s, free=_free()) from error
        except BaseException:
            remove_placement_group(group)
            raise
        self._groups.append(group)
        places = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i) for i in range(count)]
        return [replace(resources, place=place) for place in places]

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """End every actor that this runtime started."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.let_go()
        deaths = [asyncio.ensure_future(handle.wait_dead()) for handle in handles]
        if deaths:
            _, slow = await asyncio.wait(deaths, timeout=grace_s)
            await asyncio.gather(*(h.kill() for h, death in zip(handles, deaths, strict=True) if death in slow))
        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()

    async def _until_free(self, name: str) -> None:
        """Wait until Ray has forgotten a dead actor of this name.

        Raises:
            AlreadyRunningError: the actor lives (E8010).
        """
        end = time.monotonic() + NAME_WAIT_S
        while time.monotonic() < end:
            try:
                holder = ray.get_actor(name, namespace=self.namespace)
            except ValueError:
                return
            try:
                await within(_result(holder.answer.remote()), max(POLL_S, end - time.monotonic()))
                break
            except RayActorError as error:
                logger.debug(
                    "the actor %s is dead (%s); waiting until its name is free", name, cluster.first_line(error)
                )
                ray.kill(holder)
                await asyncio.sleep(POLL_S)
            except TimeoutError:
                break
        raise cluster.name_taken(name, self.namespace)


def this_node() -> str:
    """Return the id of the machine of this process in the cluster."""
    return str(ray.get_runtime_context().get_node_id())


def _free() -> str:
    free = ray.available_resources()
    return f"{free.get('GPU', 0):g} GPUs and {free.get('CPU', 0):g} CPUs"


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _machines() -> list[cluster.Machine]:
    return [cluster.Machine(n["NodeManagerAddress"], float(n["Resources"].get("GPU", 0))) for n in _nodes()]


def _node_id(address: str) -> str:
    nodes = _nodes()
    ids = {node[name]: str(node["NodeID"]) for node in nodes for name in ("NodeManagerAddress", "NodeID")}
    if address in ids:
        return ids[address]
    known = ", ".join(node["NodeManagerAddress"] for node in nodes)
    raise EnvironmentProblem(f"no machine {address} in the Ray cluster; it has {known}", code="E3405")


_token = TokenMode()


def connect(request: cluster.ClusterRequest) -> str:
    """Join the cluster at the address, or start one on this machine.

    Return its address.

    Signal handlers of this process stay as they are.

    Raises:
        EnvironmentProblem: none runs and several machines are asked for (E3401), versions or token differ (E3402),
            what answers is no Ray head (E3409), fewer machines or GPUs are there than asked for (E3401, E3202), or
            several commands share the GPUs of this machine (E3408).
    """
    cluster.prepare_environment(request)
    address = cluster.found_address(request.address)
    cluster.check_found(request, address)
    with cluster.signals_kept(), head_watch.own_sessions(services):
        try:
            _token.follow(address)
            ray.init(
                address=address or "local",
                num_gpus=None if address else request.gpu_per_node,
                include_dashboard=None if address else False,
                _temp_dir=None if address else request.folder or None,
                namespace=request.namespace,
                log_to_driver=not request.is_quiet,
                logging_level=logging.WARNING,
            )
            cluster.check_cluster(request, _machines())
        except (AuthenticationError, ConnectionError, RuntimeError, EnvironmentProblem) as error:
            disconnect()
            raise cluster.refusal(error, address) or error from error.__cause__
    where = f"joined the Ray cluster at {address}" if address else "started Ray on this machine"
    logger.info("%s: %d machines, %s", where, len(_nodes()), _free())
    return str(ray.get_runtime_context().gcs_address)


def disconnect(timeline: Path | None = None, *, is_lost: bool = False) -> None:
    """Leave the cluster; end it if `connect` started it.

    Ray's timeline is written to `timeline` first.
    """
    if not ray.is_initialized():
        return _token.restore()
    left = head_watch.below_raylet() if is_lost else []
    if timeline is not None and not is_lost:
        timeline.parent.mkdir(parents=True, exist_ok=True)
        logging.getLogger("ray._private.state").setLevel(logging.ERROR)  # it warns of where events will be kept
        ray.timeline(str(timeline))
    ray.shutdown()
    _token.restore()
    head_watch.end_processes(left)
