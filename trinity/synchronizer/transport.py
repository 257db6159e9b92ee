"""Transports of weights on the trainer's side.

A transport takes the weights of a version and returns the ticket with which engines load them.

They hold published versions until nobody can ask for them again. What the engine does with a ticket is in
`trinity.common.weights`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trinity.common.constants import SyncMethod
from trinity.common.weights.delta import DELTA_FILE, is_comparable, write_delta
from trinity.common.weights.files import (
    LOCK_FILE,
    TICKET_FILE,
    WEIGHTS_FILE,
    needed_for,
    read_version,
    remove_unfinished,
    remove_unless_read,
    ticket_in,
    unpublished,
    versions_in,
)
from trinity.common.weights.ticket import Ticket, fingerprint, layout_fingerprint, num_bytes, tensor_digest
from trinity.runtime.base import Objects
from trinity.runtime.objects import LocalObjects
from trinity.synchronizer.base import not_held
from trinity.synchronizer.broadcast import BroadcastTransport
from trinity.utils.disk import exchange, sync_to_disk, system_error
from trinity.utils.failpoints import failpoint
from trinity.utils.meeting import LOOPBACK

if TYPE_CHECKING:
    from torch import Tensor

    from trinity.common.config import Config

FULL_EVERY = 10
LATEST_FILE = "latest_state_dict_iteration.txt"


class Transport(Protocol):
    """Keeps published weights by version, where the trained model is.

    Attributes:
        can_publish_live: a version may be handed over as the live tensors, which nobody has to copy.
    """

    can_publish_live: bool

    def put(self, version: int, weights: Mapping[str, Tensor], *, copy: bool) -> Ticket:
        """Hold `weights` as `version`; return its ticket.

        With `copy`, later changes of the tensors have no effect on the version.
        """

    def get(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of `version`, by Hugging Face parameter name."""

    def drop_before(self, version: int) -> None:
        """Forget versions older than `version`, except what is being read."""

    def versions(self) -> list[int]:
        """Return the versions held, ascending."""

    def close(self) -> None:
        """Give back what lasts no longer than the process."""


class MemoryTransport:
    """Weights in the memory of this machine or cluster.

    Args:
        objects: where they are held; this process, if nothing else is given.
        can_publish_live: whether a version may be published as the live tensors; false where a restarted engine may ask
            for the version again.
    """

    def __init__(self, objects: Objects | None = None, *, can_publish_live: bool = True) -> None:
        self.objects = objects or LocalObjects()
        self.can_publish_live = can_publish_live and self.objects.is_local
        self._held: dict[int, Ticket] = {}

    def put(self, version: int, weights: Mapping[str, Tensor], *, copy: bool) -> Ticket:
        """Hold `weights` as `version`."""
        is_local = self.objects.is_local
        held = {k: t.detach().clone() for k, t in weights.items()} if copy and is_local else weights
        # Tensors that stay on their device are not brought to the processor for the sake of a checksum.
        is_on_cpu = all(tensor.device.type == "cpu" for tensor in held.values())
        mark = fingerprint(held) if is_on_cpu or not is_local else layout_fingerprint(held)
        self._forget(version)
        place = {"ref": self.objects.put(held)}
        self._held[version] = Ticket(version, SyncMethod.MEMORY.value, mark, num_bytes(held), place)
        return self._held[version]

    def get(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of `version`; SyncError if they are not held."""
        if version not in self._held:
            raise not_held(version, self.versions())
        return self.objects.get(self._held[version].place["ref"])

    def drop_before(self, version: int) -> None:
        """Forget versions older than `version`."""
        for old in [v for v in self._held if v < version]:
            self._forget(old)

    def versions(self) -> list[int]:
        """Return the versions held, ascending."""
        return sorted(self._held)

    def close(self) -> None:
        """Forget every version."""
        for version in self.versions():
            self._forget(version)

    def _forget(self, version: int) -> None:
        ticket = self._held.pop(version, None)
        if ticket is not None:
            ticket.place["ref"].drop()


class CheckpointTransport:
    """Weights as files under `<job>/weights/version_N`.

    Each version is written to a temporary folder and renamed.

    Args:
        job_dir: folder of the job; `latest_state_dict_iteration.txt` in it names the newest version, as a hint.
        is_delta: write what changed since the version before; a whole version comes first, then every
            `FULL_EVERY` versions, and where the version before is gone.
    """

    can_publish_live = False

    def __init__(self, job_dir: Path, *, is_delta: bool = False) -> None:
        self.job_dir = job_dir
        self.folder = job_dir / "weights"
        self.is_delta = is_delta
        self._last: tuple[Ticket, dict[str, Tensor], int] | None = None  # with the number of deltas up to it

    def put(self, version: int, weights: Mapping[str, Tensor], *, copy: bool) -> Ticket:
        """Hold `weights` as `version`.

        Raises:
            SyncError: no space left (E5511), or another error of the file system (E5512); the attempt leaves nothing.
        """
        distinct = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in weights.items()}
        temporary = self.folder / f".version_{version}.{os.getpid()}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.folder)
            temporary.mkdir()
            return self._put(version, distinct, temporary)
        except Exception as error:
            shutil.rmtree(temporary, ignore_errors=True)
            cause = system_error(error)
            if cause is None:
                raise
            raise unpublished(version, self.folder, cause) from error

    def _put(self, version: int, weights: dict[str, Tensor], temporary: Path) -> Ticket:
        final = self.folder / f"version_{version}"
        ticket = self._write(temporary, version, weights, final=final)
        (temporary / LOCK_FILE).touch()
        (temporary / TICKET_FILE).write_text(ticket.as_json())
        for file in temporary.iterdir():
            sync_to_disk(file)
        failpoint("sync.before_publish")
        if not final.exists():
            os.rename(temporary, final)
        elif not exchange(temporary, final):
            shutil.rmtree(final)
            os.rename(temporary, final)
        sync_to_disk(self.folder)
        shutil.rmtree(temporary, ignore_errors=True)  # what the version was before
        hint = self.job_dir / f".{LATEST_FILE}.tmp"
        hint.write_text(str(version))
        os.replace(hint, self.job_dir / LATEST_FILE)
        failpoint("sync.after_publish")
        return ticket

    def _write(self, folder: Path, version: int, weights: dict[str, Tensor], *, final: Path) -> Ticket:
        """Write the tensors into `folder`; return the ticket of `final`.

        They are written in full or as a delta.
        """
        from safetensors.torch import save_file

        digests = {name: tensor_digest(tensor) for name, tensor in weights.items()}
        place: dict[str, Any] = {"folder": str(final)}
        last, num_deltas = self._last, 0
        if self.is_delta and last is not None and last[2] < FULL_EVERY - 1 and self._follows(last, version, weights):
            num_deltas = last[2] + 1
            place |= {"base": last[0].version, "base_fingerprint": last[0].fingerprint}
            write_delta(folder / DELTA_FILE, last[1], weights, digests=digests)
            place["moved_bytes"] = (folder / DELTA_FILE).stat().st_size
        else:
            save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt", "version": str(version)})
        method = SyncMethod.CHECKPOINT.value
        ticket = Ticket(version, method, fingerprint(weights, digests), num_bytes(weights), place)
        if self.is_delta:
            self._last = ticket, weights, num_deltas
        return ticket

    def _follows(self, last: tuple[Ticket, dict[str, Tensor], int], version: int, weights: dict[str, Tensor]) -> bool:
        before = last[0].version
        is_there = (self.folder / f"version_{before}" / TICKET_FILE).is_file()
        return before < version and is_there and is_comparable(last[1], weights)

    def get(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of `version`; SyncError if they are not held."""
        return read_version(ticket_in(self.folder / f"version_{version}"))

    def drop_before(self, version: int) -> None:
        """Remove versions older than `version`.

        Versions being read and the bases of deltas are kept.
        """
        held = self.versions()
        needed = needed_for(self.folder, [v for v in held if v >= version])
        for old in held:
            if old < version and old not in needed:
                remove_unless_read(self.folder / f"version_{old}")

    def versions(self) -> list[int]:
        """Return the versions held, ascending."""
        return versions_in(self.folder)

    def close(self) -> None:
        """Leave the files in place.

        The next process of the run, or a separate explorer, reads them.
        """


def has_engines_apart(config: Config) -> bool:
    """Return whether engines run in processes that may be replaced."""
    rollout = config.explorer.rollout_model
    return rollout.engine_num > 1 or rollout.engine_type != "torch" or config.cluster.runtime != "local"


def transport_of(config: Config, *, objects: Objects | None = None) -> Transport:
    """Return the transport that a resolved configuration names.

    Args:
        config: of the stage.
        objects: where transport `memory` holds the weights; None: in this process.
    """
    if config.synchronizer.sync_method == SyncMethod.NCCL:
        has_several_gpus = (config.cluster.total_gpu_num or 0) > 1
        backend = "nccl" if has_several_gpus and torch.cuda.is_available() else "gloo"
        address = LOOPBACK if config.cluster.runtime == "local" else None
        return BroadcastTransport(config.synchronizer.group_name, backend=backend, address=address)
    if config.synchronizer.sync_method == SyncMethod.CHECKPOINT:
        job_dir = Path(config.checkpoint_job_dir)
        return CheckpointTransport(job_dir, is_delta=config.synchronizer.checkpoint_delta)
    return MemoryTransport(objects, can_publish_live=not has_engines_apart(config))
