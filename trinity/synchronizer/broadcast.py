"""Transport `nccl` on the trainer's side.

Versions are held in memory and broadcast to each engine that posts a session.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from trinity.common.constants import SyncMethod
from trinity.common.weights.collective import BUCKET_BYTES, JOIN_S, Sender, Session, end_group, join_group, own_address
from trinity.common.weights.ticket import Ticket, fingerprint, num_bytes
from trinity.synchronizer.base import not_held
from trinity.utils.log import get_logger
from trinity.utils.meeting import open_store

if TYPE_CHECKING:
    from torch import Tensor

logger = get_logger("synchronizer")

LISTEN_S = 0.02  # between two looks for a session
STORE_TIMEOUT_S = 30.0


class BroadcastTransport:
    """Keeps a CPU copy of each version and a thread that serves sessions.

    Args:
        group_name: first part of the names of all groups (`synchronizer.group_name`).
        backend: `nccl` between GPUs, else `gloo`.
        bucket_bytes: size of the pieces in which a version is sent; None: `BUCKET_BYTES`.
        address: of this machine, the only one at which it listens; None: the one that leads to other machines.
    """

    can_publish_live = False  # a restarted engine asks for the version again after the trainer has continued

    def __init__(
        self, group_name: str, *, backend: str = "gloo", bucket_bytes: int | None = None, address: str | None = None
    ) -> None:
        self.bucket_bytes = bucket_bytes or BUCKET_BYTES
        self.backend = backend
        self._base = f"{group_name}/{uuid.uuid4().hex}"
        self._held: dict[int, tuple[Ticket, Mapping[str, Tensor]]] = {}
        self._address = address or own_address()
        self._store: dist.TCPStore | None = None
        self._closed = threading.Event()

    def put(self, version: int, weights: Mapping[str, Tensor], *, copy: bool) -> Ticket:
        """Hold a copy of `weights` as `version`."""
        store = self._listening()
        held = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}
        place: dict[str, Any] = {"host": self._address, "port": store.port, "group": self._base}
        place |= {"backend": self.backend, "bucket_bytes": self.bucket_bytes}
        ticket = Ticket(version, SyncMethod.NCCL.value, fingerprint(held), num_bytes(held), place)
        self._held[version] = ticket, held
        return ticket

    def get(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of `version`; SyncError if they are not held."""
        if version not in self._held:
            raise not_held(version, self.versions())
        return self._held[version][1]

    def drop_before(self, version: int) -> None:
        """Drop versions older than `version`.

        A broadcast under way keeps its own reference.
        """
        for old in [held for held in self._held if held < version]:
            del self._held[old]

    def versions(self) -> list[int]:
        """Return the versions held, ascending."""
        return sorted(self._held)

    def close(self) -> None:
        """Serve no further session."""
        self._closed.set()
        self._held.clear()

    def _listening(self) -> dist.TCPStore:
        if self._store is None:
            self._store = open_store(self._address, timeout=timedelta(seconds=STORE_TIMEOUT_S))
            threading.Thread(target=self._listen, name="weights-sessions", daemon=True).start()
        return self._store

    def _client(self) -> dist.TCPStore:
        assert self._store is not None, "the store is there before its clients"
        timeout = timedelta(seconds=STORE_TIMEOUT_S)
        return dist.TCPStore(self._address, self._store.port, is_master=False, wait_for_workers=False, timeout=timeout)

    def _listen(self) -> None:
        client, number = self._client(), 1
        while not self._closed.is_set():
            key = f"{self._base}/session/{number}"
            if not client.check([key]):
                self._closed.wait(LISTEN_S)
                continue
            asked = json.loads(client.get(key))
            client.delete_key(key)
            # A session waits for peers that may be gone; the next one must not wait behind it.
            threading.Thread(target=self._serve, args=(asked,), name="weights-broadcast", daemon=True).start()
            number += 1

    def _serve(self, asked: dict[str, Any]) -> None:
        timeout = timedelta(seconds=asked.pop("timeout_s"))
        session = Session(**asked)
        held = self._held.get(session.version)
        if held is None:
            logger.warning("version %d was asked for and is not held (held: %s)", session.version, self.versions())
            return
        group = None
        try:
            reach = {"backend": self.backend, "address": self._address}
            meet = min(timeout, timedelta(seconds=JOIN_S))
            group, device = join_group(self._client(), self._base, session, rank=0, timeout=meet, **reach)
            Sender(group, device, timeout, bucket_bytes=self.bucket_bytes).send(held[1])
        # A peer that dies shows as any of torch's errors; its side asks again, with a new group.
        except RuntimeError as error:
            logger.warning("broadcast of version %d broke off: %s", session.version, str(error).splitlines()[0])
        finally:
            if group is not None:
                end_group(group)
