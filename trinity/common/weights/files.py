"""Published weights as files, and the locks of their readers.

A version is in `<job>/weights/version_N/model.safetensors`. A reader holds a shared lock on the folder's `readers`
file; removing a version needs the exclusive lock. The operating system drops the lock when the process ends, so a dead
reader blocks nothing.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from trinity.common.errors import SyncError
from trinity.common.weights.delta import DELTA_FILE, apply_delta
from trinity.common.weights.ticket import Ticket
from trinity.utils.disk import free_mib, is_full
from trinity.utils.log import get_logger

logger = get_logger("synchronizer")

WEIGHTS_FILE = "model.safetensors"
LOCK_FILE = "readers"
TICKET_FILE = "ticket.json"


_last_read: dict[str, tuple[str, dict[str, Tensor]]] = {}
"""Fingerprint and tensors of the last assembled version, by folder of versions; the next delta applies to it."""


def read_version(ticket: Ticket) -> dict[str, Tensor]:
    """Return the tensors of a version published as files, by name.

    The files hold the whole version or a delta against an earlier one. A process that reads one version after another
    keeps the last for the next delta; a new process reads back to the last whole version.

    Raises:
        SyncError: the version, or one its delta depends on, is missing, or its file is torn (E5502, E5507).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(ticket.place["folder"])
    try:
        with reading(folder):
            if "base" not in ticket.place:
                return load_file(folder / WEIGHTS_FILE)
            base = ticket.place["base_fingerprint"]
            kept = _last_read.get(str(folder.parent))
            if kept is None or kept[0] != base:
                before = ticket_in(folder.parent / f"version_{ticket.place['base']}")
                if before.fingerprint != base:
                    raise FileNotFoundError(f"version {before.version} is not the one that the delta is of")
                kept = base, read_version(before)
            weights = apply_delta(folder / DELTA_FILE, kept[1])
            _last_read[str(folder.parent)] = ticket.fingerprint, weights
            return weights
    except (OSError, SafetensorError) as error:
        held = versions_in(folder.parent) or "none"
        raise SyncError(
            f"the weights of version {ticket.version} cannot be read from {folder} ({error}); versions at hand: {held}",
            code="E5502",
        ) from error


def needed_for(folder: Path, versions: Iterable[int]) -> set[int]:
    """Return `versions` and all versions that their deltas depend on.

    Args:
        folder: the folder of all versions.
        versions: numbers of the versions to keep.
    """
    needed: set[int] = set()
    for version in versions:
        base: int | None = version
        while base is not None and base not in needed:
            needed.add(base)
            try:
                base = ticket_in(folder / f"version_{base}").place.get("base")
            except SyncError:
                break  # the chain is broken; reading it raises an error
    return needed


def ticket_in(folder: Path) -> Ticket:
    """Return the ticket of the version in a folder.

    Raises:
        SyncError: the folder has no valid ticket (E5502).
    """
    file = folder / TICKET_FILE
    try:
        return Ticket.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        held = versions_in(folder.parent) or "none"
        raise SyncError(f"{file} is no ticket ({error}); versions at hand: {held}", code="E5502") from error


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Lock a version's folder against removal while its files are read."""
    with open(folder / LOCK_FILE, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def remove_unless_read(folder: Path) -> bool:
    """Remove a version's folder unless it is being read; return whether so."""
    try:
        with open(folder / LOCK_FILE, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def unpublished(version: int, folder: Path, cause: OSError) -> SyncError:
    """Return the error for a version that could not be published.

    The code is E5511 if the disk is full, else E5512.
    """
    if not is_full(cause):
        return SyncError(f"cannot publish the weights of version {version} under {folder}: {cause}", code="E5512")
    return SyncError(
        f"no space left to publish the weights of version {version} under {folder} ({free_mib(folder):.1f} MiB are "
        "free without them); free some space or lower trainer.max_checkpoints_to_keep, and run the same command again "
        "to continue from the newest checkpoint",
        code="E5511",
    )


def remove_unfinished(folder: Path) -> list[Path]:
    """Remove unfinished versions under `folder` and return their paths.

    Publications that were killed leave them. A job's trainer calls this.
    """
    stale = [entry for entry in folder.glob(".version_*.tmp") if entry.is_dir()]
    for entry in stale:
        logger.info("removing the unfinished version %s", entry)
        shutil.rmtree(entry, ignore_errors=True)
    return stale


def versions_in(folder: Path) -> list[int]:
    """Return the versions published under `folder`, ascending."""
    if not folder.is_dir():
        return []
    names = (p.name.removeprefix("version_") for p in folder.glob("version_*"))
    return sorted(int(n) for n in names if n.isdigit())
