"""The Ray cluster of a run: its choice, its checks and its errors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity.common.errors import AlreadyRunningError, DeadlineError, EnvironmentProblem, SyncError
from trinity.runtime.base import Handle, Resources
from trinity.runtime.last_words import told_by
from trinity.utils.gpu import VISIBLE, gpu_table
from trinity.utils.log import get_logger

DEFAULT_PORT = 6379
PROBE_S = 3.0
LOCAL = ("", "local")


@dataclass(frozen=True)
class Machine:
    """A machine of a cluster: its address and its GPUs."""

    address: str
    gpus: float


@dataclass(frozen=True)
class ClusterRequest:
    """The cluster that a run asks for.

    Attributes:
        address: `host:port`, `auto` (the one that `ray start` began on this machine, else a new one) or `local` (a new
            one).
        namespace: of the run's actors.
        node_num: machines that it asks for.
        gpu_per_node: GPUs of each.
        has_timeline: record what Ray's timeline shows.
        is_quiet: do not print the lines of the actors.
        is_part: other commands of its job run beside it and share the machine's GPUs with it.
        folder: of the sessions of a cluster that is started for the run; empty: Ray's own.
    """

    address: str
    namespace: str
    node_num: int = 1
    gpu_per_node: int = 0
    has_timeline: bool = False
    is_quiet: bool = False
    is_part: bool = False
    folder: str = ""


def found_address(address: str) -> str | None:
    """Return `host:port` of the cluster running at `address`, or None.

    Raises:
        EnvironmentProblem: the address is one of Ray Client (E3404) or not of the form `host:port` (E3404).
    """
    if address in LOCAL:
        return None
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "") or _latest_address()
        if address in (*LOCAL, "auto"):
            return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "//" in address:
        raise EnvironmentProblem(
            f"cluster.ray_address is `host:port` of a Ray head, auto or local, got {address!r}; a `ray://` address of "
            "Ray Client cannot be used, so run `trinity` on a machine of the cluster",
            code="E3404",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S).close()
    except OSError:
        return None
    return address


def _latest_address() -> str:
    """Return the address that `ray start` recorded on this machine.

    Empty if it recorded none.
    """
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def prepare_environment(request: ClusterRequest) -> None:
    """Set the environment variables of Ray before joining or starting it."""
    if request.has_timeline:
        os.environ["RAY_PROFILING"] = "1"
    if not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves actors beside anything else on the machine


def check_found(request: ClusterRequest, address: str | None) -> None:
    """Check that a cluster runs if the run needs one.

    It needs one if the configuration names one, or if it asks for more than this machine.

    Raises:
        EnvironmentProblem: none was found, and several machines are asked for (E3401), an address says where it should
            be (E3409), or several commands share the GPUs of this one (E3408).
    """
    if address is not None:
        return
    is_named = request.address not in (*LOCAL, "auto")
    named = os.environ.get("RAY_ADDRESS", "") if request.address == "auto" else request.address
    if request.node_num > 1:
        raise _not_running(request, f"does not answer at {request.address}" if is_named else "is not running")
    if named not in (*LOCAL, "auto"):
        raise _no_head(named, "nothing answers there")
    if request.is_part and request.gpu_per_node and request.address != "local":
        raise EnvironmentProblem(
            "no Ray cluster runs here, and the parts of a job share the GPUs of this machine: each command would start "
            f"a Ray of its own, all of them on the same {request.gpu_per_node} GPUs. Start one first\n"
            f"  ray start --head --port={DEFAULT_PORT}\n"
            "and run the commands again; or give each of them other GPUs with CUDA_VISIBLE_DEVICES, and "
            "--set cluster.ray_address=local",
            code="E3408",
        )


def check_cluster(request: ClusterRequest, machines: Sequence[Machine]) -> None:
    """Check that the cluster has the machines and GPUs of the run.

    Raises:
        EnvironmentProblem: it has fewer machines (E3401) or GPUs (E3202).
    """
    if len(machines) < request.node_num:
        raise _not_running(request, f"has {len(machines)} machines ({', '.join(each.address for each in machines)})")
    check_gpus({"node_num x gpu_per_node": request.node_num * request.gpu_per_node}, machines, one_machine=False)
    have = sum(each.gpus for each in machines)
    if have and not request.gpu_per_node:
        get_logger("launch").warning(
            "the cluster has %g GPUs and the run asks for none (cluster.gpu_per_node is 0): it computes on CPUs", have
        )


def _not_running(request: ClusterRequest, why: str) -> EnvironmentProblem:
    gpus = f" --num-gpus={request.gpu_per_node}" if request.gpu_per_node else ""
    is_named = request.address not in (*LOCAL, "auto")
    host, _, port = request.address.rpartition(":") if is_named else ("FIRST_MACHINE", "", str(DEFAULT_PORT))
    return EnvironmentProblem(
        f"cluster.node_num is {request.node_num} and Ray {why}; start it\n"
        f"  on the first machine:     ray start --head --port={port}{gpus}\n"
        f"  on each of the others:    ray start --address={host}:{port}{gpus}\n"
        f"and run again with --set cluster.ray_address={host}:{port}; where the first machine has ~/.ray/auth_token, "
        "the others need the same file and RAY_AUTH_MODE=token",
        code="E3401",
    )


def refusal(error: BaseException, address: str | None) -> EnvironmentProblem | None:
    """Return the error that explains a failure to join `address`, or None.

    None means that the error has nothing to do with joining.

    Ray says that it cannot connect; why is in what caused the error.
    """
    reason: BaseException | None = error
    while reason is not None:
        text = " ".join(str(reason).split())
        if "Version mismatch" in text or "AuthToken" in text or type(reason).__name__ == "AuthenticationError":
            return mismatch(text)
        reason = reason.__cause__ or reason.__context__
    if not isinstance(error, ConnectionError):
        return None
    return _no_head(address or "", f"what answers there is none that this process can join: {first_line(error)}")


def _no_head(address: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"there is no Ray head at {address}: {why}; look whether the address (cluster.ray_address, RAY_ADDRESS) is "
        "that of `ray start --head`, and whether Ray's processes are alive there (`ray status`). With `--set "
        "cluster.ray_address=local` the run starts a Ray of its own",
        code="E3409",
    )


def mismatch(text: str) -> EnvironmentProblem:
    """Return the error of a cluster that refuses this driver, as `text` says."""
    return EnvironmentProblem(
        f"the Ray cluster does not take this driver: {text}; every machine needs the same versions of Python "
        f"(here {sys.version.split()[0]}) and of ray, and the same token: RAY_AUTH_MODE=token with RAY_AUTH_TOKEN or "
        "~/.ray/auth_token, for `ray start` and `trinity run` alike, or RAY_AUTH_MODE=disabled on all of them",
        code="E3402",
    )


def check_gpus(asked: Mapping[str, float], machines: Sequence[Machine], *, one_machine: bool = True) -> None:
    """Check that the cluster has enough GPUs for a run, in use or free.

    Args:
        asked: GPUs by what asks for them.
        machines: of the cluster.
        one_machine: each of those who ask has all of its GPUs on one machine.

    Raises:
        EnvironmentProblem: it has fewer, or they are not on one machine (E3202).
    """
    total, have = sum(asked.values()), sum(each.gpus for each in machines)
    largest, wanted = max((each.gpus for each in machines), default=0), max(asked.values(), default=0)
    if total > have:
        why = f"the run asks for {total:g} GPUs and the cluster has {have:g}"
    elif one_machine and wanted > largest:
        why = f"a component asks for {wanted:g} GPUs of one machine and the largest has {largest:g}"
    else:
        return
    there = ", ".join(f"{each.address} ({each.gpus:g})" for each in machines)
    raise EnvironmentProblem(
        f"{why}:\n{gpu_table(asked, have)}\nmachines: {there or 'none'}; lower cluster.gpu_per_node, engine_num or "
        "tensor_parallel_size, or start Ray with --num-gpus on machines that have more",
        code="E3202",
    )


def kill(pid: int) -> None:
    """End a process of this machine with SIGKILL, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().split("\n", 1)[0]


def still_there(handle: Handle, seconds: float) -> DeadlineError:
    """Return the error of an actor that SIGKILL does not end."""
    return DeadlineError(
        f"{handle.name} (process {handle.pid} on {handle.node}) is still there {seconds:g} s after SIGKILL",
        code="E5705",
    )


def not_delivered(seconds: float, error: BaseException) -> SyncError:
    """Return the error of tensors that the object store does not give."""
    return SyncError(
        f"the tensors cannot be fetched from Ray's object store within {seconds:g} s: {first_line(error)}", code="E5704"
    )


def name_taken(name: str, namespace: str) -> AlreadyRunningError:
    """Return the error of a name that a living actor has."""
    return AlreadyRunningError(
        f"an actor named {name} lives in the Ray namespace {namespace}: another run has this name; give this one "
        "another `name`, `explorer.name` or `ray_namespace`, or stop the other",
        code="E8010",
    )


def death_cause(text: str) -> str:
    """Return in few words what Ray's error says of the end of an actor."""
    text = " ".join(text.split())
    if "ray.kill" in text:
        return "it was killed by its runtime"
    if "owner" in text and "died" in text:
        return "the process that started it is gone"
    if "node has died" in text or "node died" in text or "node is dead" in text:
        return "its machine is gone from the cluster"
    if "temporarily unavailable" in text:
        return "the connection to its process broke, as it does when its machine is lost"
    if "SYSTEM_ERROR" in text or "connection error" in text:
        return "its process ended without a word: killed by a signal (out of memory is SIGKILL), os._exit or a crash"
    return text


def process_facts() -> dict[str, Any]:
    """Return the id, the GPUs and the stderr file of an actor's process."""
    errors = os.readlink("/proc/self/fd/2") if sys.platform == "linux" else ""
    return {"pid": os.getpid(), "gpus": os.environ.get(VISIBLE, ""), "errors": errors}


def last_words(file: str) -> str:
    """Return what the last lines of a process's stderr say.

    Empty if its file is not on this machine.
    """
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace") if file else ""
    except OSError:
        return ""
    return told_by(line for line in text.splitlines() if not line.startswith(":"))


def late(what: str, wants: Resources, *, timeout_s: float, free: str) -> DeadlineError:
    """Return the error of a placement or process that was not ready in time.

    `free` says what the cluster has.
    """
    return DeadlineError(
        f"{what} within {timeout_s:g} s: each asks for {wants.num_gpus:g} GPUs and {wants.num_cpus:g} CPUs, and "
        f"the cluster has {free} free; wait until others give theirs back, or ask for less",
        code="E5702",
    )


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the handlers of Ctrl-C and SIGTERM, which Ray replaces."""
    is_main = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if is_main else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
