"""Who listens at a port of this machine."""

from __future__ import annotations

import psutil


def listener_of(port: int) -> str:
    """Return words that name the process that listens at a TCP port.

    They are empty where nobody listens, or where the operating system does not say who does.
    """
    try:
        found = next(
            (each.pid for each in psutil.net_connections("tcp")
             if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid),
            None,
        )  # fmt: skip
        if found is None:
            return ""
        command = " ".join(psutil.Process(found).cmdline())
    except (psutil.Error, OSError):
        return ""
    shown = command if len(command) <= 80 else f"{command[:77]}..."
    return f"process {found} ({shown}) listens there"


def taken(port: int, error: OSError) -> str:
    """Return why a port cannot be listened at, with the process that holds it."""
    holder = listener_of(port) if port else ""
    return f"{error.strerror or error}{f', {holder}' if holder else ''}"
