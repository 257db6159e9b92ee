"""Rendezvous of processes for collectives.

Processes meet at a store of torch.distributed, which does not authenticate its clients.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil
from torch import distributed

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"
BACKLOG = 512
INTERFACE_ENV_VAR = "GLOO_SOCKET_IFNAME"


def open_store(host: str, *, timeout: timedelta) -> TCPStore:
    """Return a store that listens at the address `host` of this machine.

    It listens there alone; torch's own store listens at all addresses.
    """
    family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(place)
        listener.listen(BACKLOG)
        port = int(listener.getsockname()[1])
        descriptor = listener.detach()
    return distributed.TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=descriptor
    )


def stay_on_this_machine(host: str) -> None:
    """Make gloo listen at the loopback interface if `host` is its address.

    By itself gloo uses the machine's name, which may resolve to another interface. An interface that the user named
    is kept.
    """
    if host == LOOPBACK and (name := loopback_interface()) is not None:
        os.environ.setdefault(INTERFACE_ENV_VAR, name)


def loopback_interface() -> str | None:
    """Return the name of the interface with the address 127.0.0.1."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == LOOPBACK for each in addresses):
            return name
    return None
