"""Transfer of weights by torch.distributed broadcast, in buckets.

The trainer's process keeps a rendezvous store and serves sessions. A process that wants a version posts a session
there, with the number of processes that join. They then form a process group, with the trainer as rank 0, and the
trainer broadcasts:

    engine                     store                      trainer
      | add count, set session/N |                           |
      |------------------------->|<------- read session/N ---|
      |<====== process group group/<name>, size ranks ======>|
      |<== length, header, bucket, bucket, ... (broadcast) ==|
      |  all tensors received: both ends abort the group     |

A group serves one session. A restarted engine gets its weights like any other. If a peer dies, the group is abandoned
and a new one is formed, so nothing of it reaches a later session.
"""

from __future__ import annotations

import json
import math
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trinity.common.errors import SyncError
from trinity.common.weights.ticket import Ticket
from trinity.utils.device import synchronize
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger

logger = get_logger("synchronizer")

BUCKET_BYTES = 64 * 2**20
ATTEMPTS = 2
CONNECT_S = 10.0
JOIN_S = 30.0  # for all peers of a session to join; each posts or joins it only when it is ready to receive


@dataclass(frozen=True)
class Session:
    """One broadcast.

    Attributes:
        name: name of the process group, used once.
        size: number of processes in the group, the trainer included.
        version: weights version to broadcast.
    """

    name: str
    size: int
    version: int


def shared_by(ticket: Ticket, number: int) -> list[Ticket]:
    """Return tickets for `number` engines that take one version together.

    With `nccl` they share one broadcast, each with its own rank. With other methods all tickets are the same.
    """
    if ticket.method != "nccl" or number < 2:
        return [ticket] * number
    session = asdict(Session(uuid.uuid4().hex, number + 1, ticket.version))
    return [
        replace(ticket, place=dict(ticket.place) | {"session": session, "rank": rank + 1}) for rank in range(number)
    ]


def receive_broadcast(ticket: Ticket, timeout_s: float) -> dict[str, Tensor]:
    """Return all tensors of a ticket by name, on the CPU.

    If the broadcast breaks, it is repeated once with a new group.

    Raises:
        SyncError: both attempts failed, or ended at `timeout_s` (E5506).
    """
    place, deadline = ticket.place, time.monotonic() + timeout_s
    session = Session(**place["session"]) if "session" in place else Session(uuid.uuid4().hex, 2, ticket.version)
    rank = int(place.get("rank", 1))
    failures = []
    for attempt in range(ATTEMPTS):
        left = (deadline - time.monotonic()) / (ATTEMPTS - attempt)
        try:
            limit = max(left, 0.1)
            return _within(limit, partial(_join, place, session, rank=rank, timeout_s=limit))
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            failures.append(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
            logger.warning("broadcast of version %d broke: %s", ticket.version, failures[-1])
        session, rank = Session(uuid.uuid4().hex, 2, ticket.version), 1
    raise SyncError(
        f"the weights of version {ticket.version} did not come by broadcast from {place['host']}:{place['port']} "
        f"within {timeout_s:g} s (synchronizer.sync_timeout), in {ATTEMPTS} attempts: {'; '.join(failures)}. Look "
        "whether the trainer is alive and whether the engine's node reaches that port, or use "
        "synchronizer.sync_method: checkpoint",
        code="E5506",
    )


def _within(timeout_s: float, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the result of `work`; abandon its thread at the deadline.

    A thread is needed because the store's client waits without a deadline for a trainer that is stopped.
    """
    done: queue.SimpleQueue[dict[str, Tensor] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put(work())
        except Exception as error:  # noqa: BLE001  raised again in the thread that waits
            done.put(error)

    threading.Thread(target=run, name="weights-receiver", daemon=True).start()
    try:
        result = done.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"nothing came within {timeout_s:.3g} s") from None
    if isinstance(result, Exception):
        raise result
    return result


def _join(place: Mapping[str, Any], session: Session, *, rank: int, timeout_s: float) -> dict[str, Tensor]:
    limit = timedelta(seconds=timeout_s)
    connect = timedelta(seconds=min(timeout_s, CONNECT_S))
    # Fail at once on a closed port: the store's own client retries it until its timeout.
    socket.create_connection((place["host"], place["port"]), timeout=min(timeout_s, CONNECT_S)).close()
    store = dist.TCPStore(place["host"], place["port"], is_master=False, wait_for_workers=False, timeout=connect)
    store.set_timeout(limit)
    base = place["group"]
    if rank == 1:
        number = store.add(f"{base}/count", 1)
        store.set(f"{base}/session/{number}", json.dumps(asdict(session) | {"timeout_s": timeout_s}))
    reach = {"backend": place["backend"], "address": own_address(place["host"])}
    group, device = join_group(store, base, session, rank=rank, timeout=min(limit, timedelta(seconds=JOIN_S)), **reach)
    try:
        return Receiver(group, device, limit, bucket_bytes=int(place["bucket_bytes"])).all()
    finally:
        end_group(group)


def join_group(
    store: dist.Store, base: str, session: Session, *, rank: int, timeout: timedelta, backend: str, address: str
) -> tuple[Any, torch.device]:
    """Return the process group of a session and the device of its buckets."""
    own = dist.PrefixStore(f"{base}/group/{session.name}", store)
    if backend == "nccl":
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return dist.ProcessGroupNCCL(own, rank, session.size, nccl), torch.device("cuda", torch.cuda.current_device())
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    # Use the interface that routes to the store; the host's name may resolve to another one, or to none.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(own, rank, session.size, options), torch.device("cpu")


def own_address(host: str = "192.0.2.1") -> str:
    """Return this machine's address towards `host`, or the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # connecting a datagram socket sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def end_group(group: Any) -> None:
    """Abort a group, even if a peer has died."""
    with suppress(RuntimeError):
        group.abort()


class Sender:
    """Rank 0 of a session.

    Args:
        group: the process group.
        device: device of the buckets.
        timeout: deadline of each broadcast.
        bucket_bytes: size of a bucket in bytes, the same on all ranks. Each rank holds one bucket.
    """

    def __init__(self, group: Any, device: torch.device, timeout: timedelta, *, bucket_bytes: int) -> None:
        self.group = group
        self.device = device
        self.timeout = timeout
        self.bucket_bytes = bucket_bytes

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Broadcast a header, then the bytes of all tensors in buckets.

        The header holds the name, data type and shape of each tensor, in the order of their bytes.

        Raises:
            RuntimeError: a peer has died or does not take part in time.
        """
        rows = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in weights.items()]
        header = torch.frombuffer(bytearray(json.dumps(rows).encode()), dtype=torch.uint8).to(self.device)
        self._broadcast(torch.tensor([header.numel()], device=self.device))
        self._broadcast(header)
        bucket, used = torch.empty(self.bucket_bytes, dtype=torch.uint8, device=self.device), 0
        for tensor in weights.values():
            rest = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            while rest.numel():
                count = min(self.bucket_bytes - used, rest.numel())
                bucket[used : used + count].copy_(rest[:count])
                rest, used = rest[count:], used + count
                if used == self.bucket_bytes:
                    self._broadcast(bucket)
                    failpoint("sync.after_bucket")
                    used = 0
        if used:
            self._broadcast(bucket[:used])

    def _broadcast(self, tensor: Tensor) -> None:
        _broadcast(self.group, tensor, self.timeout)


class Receiver:
    """Every other rank of a session; see `Sender`."""

    def __init__(self, group: Any, device: torch.device, timeout: timedelta, *, bucket_bytes: int) -> None:
        self.group = group
        self.device = device
        self.timeout = timeout
        self.bucket_bytes = bucket_bytes

    def all(self) -> dict[str, Tensor]:
        """Return every tensor by name, on the CPU.

        Raises:
            RuntimeError: the sender has died or does not send in time.
        """
        length = torch.zeros(1, dtype=torch.long, device=self.device)
        _broadcast(self.group, length, self.timeout)
        header = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        _broadcast(self.group, header, self.timeout)
        rows = json.loads(bytes(header.cpu().numpy()))
        weights = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in rows}
        parts = [tensor.reshape(-1).view(torch.uint8) for tensor in weights.values() if tensor.numel()]
        left = sum(part.numel() for part in parts)
        bucket = torch.empty(min(self.bucket_bytes, left), dtype=torch.uint8, device=self.device)
        index = start = 0
        for _ in range(math.ceil(left / self.bucket_bytes)):
            count = min(self.bucket_bytes, left)
            _broadcast(self.group, bucket[:count], self.timeout)
            failpoint("sync.after_bucket_received")
            left -= count
            taken = 0
            while taken < count:
                step = min(parts[index].numel() - start, count - taken)
                parts[index][start : start + step].copy_(bucket[taken : taken + step])
                taken, start = taken + step, start + step
                if start == parts[index].numel():
                    index, start = index + 1, 0
        return weights


def _broadcast(group: Any, tensor: Tensor, timeout: timedelta) -> None:
    options = dist.BroadcastOptions()
    options.rootRank, options.timeout = 0, timeout
    group.broadcast([tensor], options).wait(timeout)
    synchronize(tensor.device)
