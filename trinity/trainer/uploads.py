"""Copies of finished checkpoints at an address, made during training."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trinity.common.checkpoint import LATEST, MANIFEST, CheckpointStore, verify_checkpoint
from trinity.common.config import Config
from trinity.common.errors import CheckpointError, TrinityError
from trinity.utils.disk import write_atomically
from trinity.utils.log import get_logger
from trinity.utils.memory import shown_bytes
from trinity.utils.remote.addresses import joined, shown
from trinity.utils.remote.errors import AddressError, reason
from trinity.utils.remote.patience import Patience
from trinity.utils.remote.upload import claimed, upload_folder, write_text

STOP_GRACE_S = 10.0
OWN_NAME = "upload_owner"
_logger = get_logger("trainer")


class CheckpointUploads:
    """Copies the checkpoints of a job in a thread of its own.

    Training waits for it only at the end, and never fails because of it: what cannot be copied is logged and counted,
    and tried again with the next checkpoint and at the next start.

    Args:
        job_dir: folder of the job.
        address: where each checkpoint is copied to; empty: none is copied.
        patience: bounds every wait; None: the default.
    """

    def __init__(self, job_dir: Path, address: str, *, patience: Patience | None = None) -> None:
        self.address = address
        self._checkpoints = CheckpointStore(job_dir)
        self._patience = patience
        self._open: list[int] = []
        self._failed: list[int] = []
        self._num_failures = 0
        self._done: set[int] = set()
        self._is_claimed = self._is_ending = self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, config: Config) -> CheckpointUploads:
        """Return the uploads that a configuration asks for."""
        job, address = Path(config.checkpoint_job_dir), config.trainer.checkpoint_upload_dir
        inner = job.relative_to(config.checkpoint_root_dir).parts if address else ()
        return cls(job, joined(address or "", *inner) if address else "")

    def begin(self) -> None:
        """Copy the checkpoints that an earlier process has left here.

        Raises:
            CheckpointError: the checkpoints of another job are at the address (E7047).
        """
        if not self.address:
            return
        try:
            self._claim(replace(self._patience or Patience(), attempts=1))
        except AddressError as error:
            _logger.warning("%s; training continues, and it is tried again with each checkpoint", error.args[0])
        for step in self._checkpoints.steps():
            self.offer(step)

    def offer(self, step: int) -> None:
        """Copy the checkpoint of a step, and those that failed before."""
        if not self.address:
            return
        with self._changed:
            again = [each for each in (*self._open, *self._failed) if each != step]
            self._open, self._failed = [*sorted(again), step], []
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="checkpoint uploads")
                self._thread.start()

    def metrics(self) -> dict[str, float]:
        """Return numbers of copied and waiting checkpoints, and of failures."""
        if not self.address:
            return {}
        with self._changed:
            return {
                "perf/checkpoint/uploaded": float(len(self._done)),
                "perf/checkpoint/upload_pending": float(len(self._open) + len(self._failed)),
                "perf/checkpoint/upload_failures": float(self._num_failures),
            }

    def finish(self, is_stopped: Callable[[], bool] = bool) -> None:
        """Wait for what is still to be copied, and log what was not.

        Every copy ends, as each call to the store has a deadline.

        Args:
            is_stopped: whether a stop was asked for, so that at most ten seconds are left.
        """
        if not self.address:
            return
        deadline = float("inf")
        with self._changed:
            self._is_ending = True
            while self._open and time.monotonic() < deadline:
                self._changed.wait(0.5)
                if is_stopped():
                    deadline = min(deadline, time.monotonic() + STOP_GRACE_S)
            self._is_closed = True
            self._changed.notify_all()
            left = sorted({*self._open, *self._failed})
        if left:
            _logger.warning(
                "%d of the checkpoints are not copied to %s: those of the steps %s; they are on this machine, and the "
                "next start of the job copies them",
                len(left),
                shown(self.address),
                ", ".join(map(str, left)),
            )

    def _claim(self, patience: Patience) -> None:
        """Make sure that nobody else copies to the address."""
        if self._is_claimed:
            return
        file = self._checkpoints.job_dir / OWN_NAME
        if not file.exists():
            write_atomically(file, secrets.token_hex(16))
        own = file.read_text(encoding="utf-8")
        if claimed(self.address, own, patience=patience) != own:
            raise CheckpointError(
                f"`trainer.checkpoint_upload_dir`: {shown(self.address)} has the checkpoints of another job of this "
                "name, which would be replaced; choose another `name` or another address, or remove them there",
                code="E7047",
            )
        self._is_claimed = True

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._open and not self._is_closed:
                    self._changed.wait(60.0)
                if self._is_closed:
                    return
                step = self._open[0]
            is_done = self._copy(step)
            with self._changed:
                self._open = [each for each in self._open if each != step]
                if is_done:
                    self._done.add(step)
                elif is_done is not None:
                    self._num_failures += 1
                    self._failed.append(step)
                    if self._is_ending:  # the others would wait for the same store
                        self._failed, self._open = [*self._failed, *self._open], []
                self._changed.notify_all()

    def _copy(self, step: int) -> bool | None:
        """Return whether a checkpoint is copied; None: it no longer exists."""
        folder = self._checkpoints.job_dir / f"global_step_{step}"
        target, begun = joined(self.address, folder.name), time.monotonic()
        patience = self._patience or Patience()
        try:
            self._claim(patience)
            verify_checkpoint(folder, level="size")
            sent = upload_folder(folder, target, seal=MANIFEST, patience=patience)
            if sent and step == max(self._checkpoints.steps()):
                write_text(joined(self.address, LATEST), str(step), patience=patience)
        except Exception as error:  # noqa: BLE001 - training continues whatever a store does
            if not (folder / MANIFEST).exists():
                _logger.warning("checkpoint of step %d was removed before it was copied to %s", step, shown(target))
                return None
            cause = error.args[0] if isinstance(error, TrinityError) else reason(error)
            _logger.warning(
                "checkpoint of step %d is not copied to %s: %s; training continues", step, shown(target), cause
            )
            return False
        if sent:
            seconds = time.monotonic() - begun
            _logger.info(
                "checkpoint of step %d: %s copied to %s in %.1f s", step, shown_bytes(sent), shown(target), seconds
            )
        return True
