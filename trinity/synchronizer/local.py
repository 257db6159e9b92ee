"""Synchronizer of one run: versions, tickets and snapshots in memory.

Snapshots are those after each explorer's last finished step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trinity.common.errors import SyncError
from trinity.synchronizer.base import not_held
from trinity.synchronizer.schedule import Schedule
from trinity.utils.deadline import within

if TYPE_CHECKING:
    from trinity.common.weights import Ticket


@dataclass
class ExplorerEntry:
    """What is known of one explorer.

    Attributes:
        state: its snapshot after its last finished step, None before the first.
        awaited: version that it waits for.
        requested: version, or a newer one, that it asks the trainer to publish; 0 for whatever there is.
        is_acknowledged: the trainer knows of the request.
        reading: versions that its engines are taking, and how many of them.
        is_done: it will ask for no further version.
    """

    state: dict[str, Any] | None = None
    awaited: int | None = None
    requested: int | None = None
    is_acknowledged: bool = False
    reading: Counter[int] = field(default_factory=Counter)
    is_done: bool = False


class LocalSynchronizer:
    """`Synchronizer` shared by the explorers and the trainer of one run.

        explorer                                   trainer
        request(v) ---------- requested = v -----> wait_for_request()
            | <------- newest version, >= v ------ publish(ticket)   if it has newer weights
            | <------- newest version, >= v ------ acknowledge()     if it has none
        fetch(v)      the engines load version v
        release(v)    until then version v is not dropped

    Args:
        schedule: which version serves which explore step.
        timeout_s: longest wait for a version or for the explorer to take one (`synchronizer.sync_timeout`).
    """

    def __init__(self, schedule: Schedule, *, timeout_s: float) -> None:
        self.schedule = schedule
        self.timeout_s = timeout_s
        self._version = 0
        self._tickets: dict[int, Ticket] = {}
        self._explorers: dict[str, ExplorerEntry] = {}
        self._live_version: int | None = None
        self._trainer_done = False
        self._changed = asyncio.Condition()

    # ------------------------------------------------------------------ trainer
    async def is_awaited(self, version: int) -> bool:
        """Return whether `version` may be copied from the live tensors.

        True if the only explorer waits for it and no older version can be requested again. The trainer waits during
        the copy.
        """
        return self._may_publish_live(version)

    async def publish(self, ticket: Ticket, *, is_live: bool = False) -> int | None:
        """Make a version available.

        Args:
            ticket: of the version.
            is_live: the ticket leads to the live tensors: wait until the explorer has copied them.

        Returns:
            The oldest version that somebody can still ask for. None if live tensors were offered and the explorer that
            waited for them has ended meanwhile: nothing was published.

        Raises:
            SyncError: the explorer did not take the live tensors before the deadline.
        """
        version = ticket.version
        async with self._changed:
            if is_live and not self._may_publish_live(version):
                return None
            self._tickets[version] = ticket
            self._version = max(self._version, version)
            self._live_version = version if is_live else None
            self._settle_requests()
            self._changed.notify_all()
            if is_live:
                await self._until(lambda: self._live_version is None, f"the explorer to load version {version}")
                # Nobody asks for older ones either, wherever the explorer was when it last reported.
                self._tickets = {newer: kept for newer, kept in self._tickets.items() if newer > version}
                return version + 1
            return self._drop()

    async def wait_for_request(self, *, timeout_s: float) -> bool:
        """Wait for an explorer's request that the trainer has not seen.

        Return whether one arrived in time.
        """
        async with self._changed:
            try:
                await within(self._changed.wait_for(self._unacknowledged), timeout_s)
            except TimeoutError:
                return False
            for entry in self._unacknowledged():
                entry.is_acknowledged = True
            return True

    async def is_requested(self) -> bool:
        """Return whether an explorer waits for its request to be acknowledged."""
        return any(entry.requested is not None for entry in self._explorers.values())

    async def acknowledge(self) -> None:
        """Answer open requests: the newest version is what the trainer has.

        An explorer that needs a newer version continues to wait.
        """
        async with self._changed:
            self._settle_requests()
            self._changed.notify_all()

    async def finish_trainer(self) -> None:
        """Say that no further version will come."""
        async with self._changed:
            self._trainer_done = True
            self._changed.notify_all()

    async def explorer_state(self, explorer: str) -> dict[str, Any] | None:
        """Return an explorer's snapshot after its last finished step.

        A checkpoint stores it.
        """
        return self._explorers[explorer].state if explorer in self._explorers else None

    async def needed_versions(self, training_step: int) -> list[int]:
        """Return the published versions that explorers may still request.

        The version of `training_step` is left out.

        Empty where the checkpoint's own weights, or the initial model, serve all that comes: always so where the
        explorer takes the newest.
        """
        if not self.schedule.is_fixed:
            return []
        oldest = self._oldest_needed()
        return [version for version in sorted(self._tickets) if oldest <= version < training_step]

    async def is_explorer_expected(self) -> bool:
        """Return false: the explorers of a run exist from its beginning.

        The store therefore knows whether they are active.
        """
        return False

    # ----------------------------------------------------------------- explorer
    async def required_version(self) -> int:
        """Return 0: within one run, schedule and bound say what a step requires."""
        return 0

    async def wait_for_version(self, version: int, *, timeout_s: float | None = None, explorer: str) -> int:
        """Wait for `version` or a newer one; return the newest.

        The wait also ends when the trainer has finished.

        Raises:
            SyncError: neither happened before the deadline (`synchronizer.sync_timeout`).
        """
        async with self._changed:
            entry = self._entry(explorer)
            entry.awaited = version
            self._changed.notify_all()
            try:
                await self._until(
                    lambda: self._version >= version or self._trainer_done,
                    f"version {version} (the trainer's newest is {self._version})",
                    timeout_s=timeout_s,
                )
            finally:  # also when this wait is cancelled: nobody would take live tensors published for it
                entry.awaited = None
            return self._version

    async def request(self, version: int = 0, *, timeout_s: float | None = None, explorer: str) -> int:
        """Request `version` or a newer one from the trainer.

        Return the newest version once the trainer has answered or finished. The trainer answers between two training
        steps, also while it waits for experiences.

        Raises:
            SyncError: no answer before the deadline (`synchronizer.sync_timeout`).
        """
        async with self._changed:
            entry = self._entry(explorer)
            if self._version < version or not version:
                entry.requested, entry.is_acknowledged = version, False
            self._changed.notify_all()
            try:
                what = f"the trainer to answer with version {version or self._version} or a newer one"
                await self._until(lambda: entry.requested is None or self._trainer_done, what, timeout_s=timeout_s)
            finally:
                entry.requested = None
            return self._version

    async def wait_for_trainer(self, *, timeout_s: float | None = None) -> int:
        """Wait until the trainer has finished; return the last version.

        Versions published in the meantime do not end the wait.

        Raises:
            SyncError: a version took longer than the deadline.
        """
        async with self._changed:
            while not self._trainer_done:
                await self._until(self._is_newer_than(self._version), "the trainer to finish", timeout_s=timeout_s)
            return self._version

    async def fetch(self, version: int, *, explorer: str) -> Ticket:
        """Return the ticket of `version`.

        Call `release` when the engines hold their own copy.

        Raises:
            SyncError: the version is not held any more, or not yet (E5502).
        """
        async with self._changed:
            if version not in self._tickets:
                raise not_held(version, sorted(self._tickets))
            self._entry(explorer).reading[version] += 1
            return self._tickets[version]

    async def release(self, version: int, *, explorer: str) -> None:
        """Record that the engines copied `version` or gave up loading it."""
        async with self._changed:
            reading = self._entry(explorer).reading
            reading[version] -= 1
            if reading[version] <= 0:
                del reading[version]
            self._live_version = None
            self._changed.notify_all()

    async def report_explorer(self, state: dict[str, Any], *, explorer: str) -> None:
        """Keep an explorer's snapshot after a finished step.

        It is JSON-able and has the key `explore_step`.
        """
        async with self._changed:
            self._entry(explorer).state = state

    async def finish_explorer(self, *, explorer: str) -> None:
        """Say that an explorer will ask for no further version."""
        async with self._changed:
            self._entry(explorer).is_done = True
            self._live_version = None
            self._changed.notify_all()

    # ------------------------------------------------------------------- either
    async def restore(
        self,
        version: int,
        explorer_state: dict[str, Any] | None,
        *,
        tickets: Sequence[Ticket],
        explorer: str,
    ) -> None:
        """Continue from a checkpoint.

        Args:
            version: newest published version at the checkpoint.
            explorer_state: the explorer's snapshot in it.
            tickets: of every version that the explorer can still ask for.
            explorer: name of the explorer.
        """
        async with self._changed:
            self._version = version
            self._entry(explorer).state = explorer_state
            self._tickets |= {ticket.version: ticket for ticket in tickets}
            self._changed.notify_all()

    async def newest_version(self) -> int:
        """Return the newest published version; 0 is the initial model."""
        return self._version

    async def newest(self) -> tuple[int, str]:
        """Return the newest version, as `FolderSynchronizer` does.

        Within one run its number, which is given once, identifies it.
        """
        return self._version, ""

    async def is_trainer_finished(self) -> bool:
        """Return whether the trainer will publish no further version."""
        return self._trainer_done

    def _entry(self, explorer: str) -> ExplorerEntry:
        return self._explorers.setdefault(explorer, ExplorerEntry())

    def _unacknowledged(self) -> list[ExplorerEntry]:
        return [
            entry for entry in self._explorers.values() if entry.requested is not None and not entry.is_acknowledged
        ]

    def _settle_requests(self) -> None:
        for entry in self._explorers.values():
            if entry.requested is not None and entry.requested <= self._version:
                entry.requested = None

    def _may_publish_live(self, version: int) -> bool:
        if self.schedule.keeps_history or len(self._explorers) != 1:
            return False
        awaited = next(iter(self._explorers.values())).awaited
        return awaited is not None and awaited <= version

    def _is_newer_than(self, version: int) -> Callable[[], bool]:
        return lambda: self._trainer_done or self._version > version

    def _oldest_needed(self) -> int:
        return min([self._next_of(entry) for entry in self._explorers.values()] or [0])

    def _next_of(self, entry: ExplorerEntry) -> int:
        done = entry.state["explore_step"] if entry.state else 0
        return min([self.schedule.oldest_needed(done + 1, newest=self._version), *entry.reading])

    def _drop(self) -> int:
        oldest = self._oldest_needed()
        for old in [version for version in self._tickets if version < oldest]:
            del self._tickets[old]
        return oldest

    async def _until(self, condition: Callable[[], bool], what: str, *, timeout_s: float | None = None) -> None:
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            await within(self._changed.wait_for(condition), limit)
        except TimeoutError as error:
            raise SyncError(
                f"timed out after {limit:g} s waiting for {what}; "
                "raise synchronizer.sync_timeout if a step takes longer",
                code="E5501",
            ) from error
