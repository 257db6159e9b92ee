"""What places components: a runtime starts objects and hands out handles.

One contract for three placements: this process (`local.py`), child processes of this machine (`process.py`) and the
actors of a Ray cluster (`ray.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trinity.common.errors import TrinityError
from trinity.utils.gpu import HIDDEN

if TYPE_CHECKING:
    from torch import Tensor

START_TIMEOUT_S = 300.0
CLOSE_GRACE_S = 10.0
NODE_ENV_VAR = "TRINITY_NODE"
"""Tells a process of a cluster the address of its machine."""


class ActorDiedError(TrinityError):
    """The process of a component ended.

    The message names the component, its process and the cause.
    """

    default_code = "E5701"


class RemoteError(TrinityError):
    """An error that could not be passed between processes as itself.

    The message holds its class, message and place.
    """

    default_code = "E5703"


@dataclass(frozen=True)
class Resources:
    """What a component asks of its place.

    Attributes:
        num_gpus: GPUs for it alone; a part of one is shared.
        num_cpus: CPU cores that a scheduler reserves; 0 reserves none.
        env: environment variables of its process, beside those of the driver.
        own_process: give it a process of its own even where everything else is in this one.
        node: address of the node that it must run on; None: anywhere.
        place: what `Runtime.reserve` has reserved for it.
    """

    num_gpus: float = 0
    num_cpus: float = 0
    env: Mapping[str, str] = field(default_factory=dict)
    own_process: bool = False
    node: str | None = None
    place: Any = None

    def environment(self, *, divides_gpus: bool) -> dict[str, str]:
        """Return the environment variables of the component's process.

        Where GPUs are divided, a process that requests none sees none.
        """
        return {**(HIDDEN if divides_gpus and not self.num_gpus else {}), **self.env}


ANYWHERE = Resources()


@dataclass(frozen=True)
class Setup:
    """What every process of a run does before it makes its component.

    Attributes:
        function: called with the component's name and `arguments`; found by its import path.
        arguments: by name.
    """

    function: Callable[..., None]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def run(self, name: str) -> None:
        """Prepare this process for the component `name`."""
        self.function(name, **self.arguments)


@dataclass(frozen=True)
class Order:
    """A component that is to be started.

    Attributes:
        cls: its class.
        args: of the constructor.
        kwargs: of the constructor.
        name: of the component.
        resources: what it needs.
        timeout_s: longest wait for it.
    """

    cls: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    name: str
    resources: Resources = ANYWHERE
    timeout_s: float = START_TIMEOUT_S

    @classmethod
    def of(cls, component: Callable[..., Any], args: tuple[Any, ...], how: Mapping[str, Any]) -> Order:
        """Return the start order for `Runtime.start` with the arguments `how`."""
        kwargs = dict(how)
        name = kwargs.pop("name", None) or getattr(component, "__name__", "component")
        resources = kwargs.pop("resources", ANYWHERE)
        timeout_s = kwargs.pop("timeout_s", START_TIMEOUT_S)
        return cls(component, args, kwargs, name, resources, timeout_s)

    def ranks(self, count: int) -> list[Order]:
        """Return the orders of a group."""
        return [replace(self, name=f"{self.name}_{i}", kwargs={**self.kwargs, "rank": i}) for i in range(count)]


class Handle(Protocol):
    """Handle of a component, wherever it runs.

    `await handle.method(args)` calls its public methods.

    Coroutine methods of the component run concurrently, the others one at a time in its worker thread. An exception
    arrives with its own type. Cancelling the wait cancels a coroutine and abandons a plain call. A handle may be used
    from several event loops.

    Attributes:
        name: of the component, unique in the runtime.
        pid: of its process.
        node: address of its machine.
    """

    name: str
    pid: int
    node: str

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]: ...

    async def kill(self) -> None:
        """Kill the component's process; its calls fail with `ActorDiedError`."""

    async def wait_dead(self) -> str:
        """Return the cause of death, when the component is gone."""

    def let_go(self) -> None:
        """Release the placement without waiting.

        The caller is responsible for the component's own `close`.
        """


class ObjectRef(Protocol):
    """A small reference to stored tensors.

    It may be passed in arguments and results.
    """

    def load(self) -> Mapping[str, Tensor]:
        """Return the tensors, to be read only; tied tensors are one tensor again.

        Raises:
            SyncError: they are gone (E5704).
        """

    def drop(self) -> None:
        """Give the memory back; takes effect where `put` was called."""


@runtime_checkable
class Objects(Protocol):
    """Passes large tensors between components.

    It may itself be passed to a component.

    Attributes:
        is_local: the tensors themselves are handed over, so that whoever gets them sees later changes.
    """

    is_local: bool

    def put(self, tensors: Mapping[str, Tensor]) -> ObjectRef:
        """Keep `tensors` by name until the reference is dropped.

        Later changes of the tensors may be visible.
        """

    def get(self, ref: ObjectRef) -> Mapping[str, Tensor]:
        """Return the tensors of `ref`, to be read only."""


class Runtime(Protocol):
    """Places components and hands out handles.

    Attributes:
        is_local: a component is in this process, unless `Resources.own_process` asks for another.
    """

    is_local: bool

    @property
    def objects(self) -> Objects:
        """The store through which large tensors are handed over."""

    @property
    def core_count(self) -> int:
        """CPU cores of all machines where components may be placed."""

    async def start(
        self,
        cls: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        resources: Resources = ANYWHERE,
        timeout_s: float = START_TIMEOUT_S,
        **kwargs: Any,
    ) -> Handle:
        """Return a handle of `cls(*args, **kwargs)`.

        The object is constructed where the runtime places it.

        Args:
            cls: found by its import path where it is constructed.
            args: of the constructor.
            name: of the component; None: the name of the class.
            resources: what it needs.
            timeout_s: longest wait for place, process and constructor in seconds.
            kwargs: of the constructor.

        Raises:
            AlreadyRunningError: a component of this name lives (E8010).
            ActorDiedError: its process ended before it was constructed (E5701).
            DeadlineError: not constructed in time (E5702).
            Exception: what the constructor raises.
        """

    async def group(
        self,
        cls: Callable[..., Any],
        count: int,
        *args: Any,
        name: str | None = None,
        resources: Resources = ANYWHERE,
        timeout_s: float = START_TIMEOUT_S,
        **kwargs: Any,
    ) -> list[Handle]:
        """Return handles of `cls(*args, rank=i, **kwargs)` for i below `count`.

        Either all are placed or none.

        They are named `<name>_<i>` and placed together: on as few nodes as possible.
        """

    async def reserve(
        self, count: int, *, name: str, resources: Resources, timeout_s: float = START_TIMEOUT_S
    ) -> list[Resources]:
        """Reserve resources for `count` components that start one by one.

        Return the resources to start each of them with. Either all places are reserved or none.

        A place stays reserved when its component ends, until the runtime is closed.

        Args:
            count: of the components.
            name: of all of them, for messages.
            resources: of each.
            timeout_s: longest wait for the places in seconds.

        Raises:
            EnvironmentProblem: the cluster has too little, whoever uses it (E3202).
            DeadlineError: not free in time (E5702).
        """

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """End every component; kill processes that outlast `grace_s` seconds."""


def public_name(name: str, component: str) -> str:
    """Return `name`, a method that may be called through a handle.

    Raises:
        AttributeError: it is private.
    """
    if name.startswith("_"):
        raise AttributeError(f"{component}.{name} is private; a handle gives public methods")
    return name
