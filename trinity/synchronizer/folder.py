"""Synchronizer of explorers and a trainer that run as separate jobs.

They communicate through the folder of their job and the experience store.

```
<job>/synchronizer.json            what the trainer says: its newest version, its rhythm, whether it has finished
      weights/version_N/           published weights and their ticket
      locks/<part>.lock            held while a part lives
store: producer                    what each explorer says: its last step, which version it waits for, its end
       producer_snapshot           where it continues after a restart
```

All parts poll every `POLL_S` seconds. A dead part sends no message; its lock is free.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.common.constants import BENCH, TRAINER
from trinity.common.errors import SyncError
from trinity.utils.disk import write_atomically
from trinity.utils.locks import is_held, note_of, part_lock
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.common.weights import Ticket

logger = get_logger("synchronizer")

POLL_S = 0.1
ALIVE_EVERY = 10  # polls between two looks at the other side's lock
ALONE_S = 10.0
STATE_FILE = "synchronizer.json"


@dataclass(frozen=True)
class TrainerNews:
    """What the trainer of a job says to its explorers.

    Attributes:
        name: of the part; empty where no trainer has joined yet.
        version: newest published version; 0 is the initial model.
        fingerprint: of that version's weights; empty where none were published.
        interval: training steps between two versions.
        offset: training batches that the explorers together may run ahead.
        rollouts_per_step: rollouts that a training step takes.
        is_finished: no further version will come.
    """

    name: str = ""
    version: int = 0
    fingerprint: str = ""
    interval: int = 1
    offset: int = 0
    rollouts_per_step: int = 0
    is_finished: bool = False

    def required(self, num_rollouts: int) -> int:
        """Return the version required once `num_rollouts` rollouts exist.

        Nothing more may be explored without it.

        It is the newest version that the trainer can reach with these rollouts alone, less the offset. With one
        explorer that makes a training batch a step, this is the fixed schedule; several explorers together run as far
        ahead of the trainer as that one.
        """
        if not self.rollouts_per_step:
            return 0
        steps = max(0, num_rollouts // self.rollouts_per_step - self.offset)
        return steps - steps % self.interval


class FolderSynchronizer:
    """`Synchronizer` for parts in separate processes.

    Each part of a job creates its own instance.

    Args:
        job_dir: folder of the job.
        store: the open store of the job.
        buffer: name of the experience buffer.
        scope: `run` and `stage` of the job's rows.
        timeout_s: longest wait for the other side (`synchronizer.sync_timeout`).
        news: what the trainer says of itself; on an explorer's side, what holds until it says anything.
    """

    def __init__(
        self,
        job_dir: Path,
        store: ExperienceStore,
        *,
        buffer: str,
        scope: dict[str, str],
        timeout_s: float,
        news: TrainerNews,
    ) -> None:
        self.job_dir = job_dir
        self.store = store
        self.buffer = buffer
        self.scope = scope
        self.timeout_s = timeout_s
        self._own = news
        self._is_told = False

    # ------------------------------------------------------------------ trainer
    async def is_awaited(self, version: int) -> bool:
        """Return false: nobody can copy from the tensors of another process."""
        return False

    async def publish(self, ticket: Ticket, *, is_live: bool = False) -> int | None:
        """Announce a version; return the version before it.

        An explorer may still be about to read the previous version.

        Raises:
            SyncError: it cannot be written down (E5511, E5512).
        """
        before = self._news().version
        await self._say(version=ticket.version, fingerprint=ticket.fingerprint)
        return before

    async def wait_for_request(self, *, timeout_s: float) -> bool:
        """Return false after the timeout.

        Explorers that run apart never request weights; they take the versions that exist.
        """
        await asyncio.sleep(timeout_s)
        return False

    async def acknowledge(self) -> None:
        """Nothing to say: nobody has asked."""

    async def finish_trainer(self) -> None:
        """Say that no further version will come."""
        await self._say(is_finished=True)

    async def explorer_state(self, explorer: str) -> dict[str, Any] | None:
        """Return nothing: the store keeps the explorers' snapshots."""
        return None

    async def needed_versions(self, training_step: int) -> list[int]:
        """Return nothing: a resumed trainer publishes its checkpoint's weights."""
        return []

    async def restore(
        self,
        version: int,
        explorer_state: dict[str, Any] | None,
        *,
        tickets: Sequence[Ticket],
        explorer: str,
    ) -> None:
        """Begin, or continue from a checkpoint of step `version`.

        Versions that a lost later step published are removed, once no explorer is told to take them.
        """
        from trinity.common.weights.files import remove_unless_read, versions_in

        marks = {ticket.version: ticket.fingerprint for ticket in tickets}
        await self._say(version=version, fingerprint=marks.get(version, ""), is_finished=False)
        folder = self.job_dir / "weights"
        for later in versions_in(folder):
            if later > version:
                remove_unless_read(folder / f"version_{later}")

    # ----------------------------------------------------------------- explorer
    async def required_version(self) -> int:
        """Return the version that the next explore step needs.

        It follows from the rollouts that all explorers have made.
        """
        produced = await asyncio.to_thread(self.store.num_produced, self.buffer, **self.scope)
        return self._news().required(produced)

    async def wait_for_version(self, version: int, *, timeout_s: float | None = None, explorer: str) -> int:
        """Wait for `version` or a newer one; return the newest.

        The wait also ends when the trainer has finished.

        Raises:
            SyncError: neither happened before the deadline (`synchronizer.sync_timeout`).
        """
        await self._until(
            lambda news: news.version >= version or news.is_finished, f"version {version}", timeout_s=timeout_s
        )
        return self._news().version

    async def request(self, version: int = 0, *, timeout_s: float | None = None, explorer: str) -> int:
        """Wait for `version` or a newer one; return the newest.

        The trainer publishes on its own schedule, so no request is sent.

        Raises:
            SyncError: it did not come before the deadline (`synchronizer.sync_timeout`).
        """
        return await self.wait_for_version(version, timeout_s=timeout_s, explorer=explorer)

    async def wait_for_trainer(self, *, timeout_s: float | None = None) -> int:
        """Wait until the trainer has finished; return the last version.

        Versions published in the meantime do not end the wait.

        Raises:
            SyncError: a version took longer than the deadline.
        """
        news = self._news()
        while not news.is_finished:
            await self._until(_is_newer_than(news.version), "the trainer to finish", timeout_s=timeout_s)
            news = self._news()
        return news.version

    async def fetch(self, version: int, *, explorer: str) -> Ticket:
        """Return the ticket of `version`.

        Raises:
            SyncError: its files are not there (E5502).
        """
        from trinity.common.weights.files import ticket_in

        return await asyncio.to_thread(ticket_in, self.job_dir / "weights" / f"version_{version}")

    async def release(self, version: int, *, explorer: str) -> None:
        """Do nothing: a reader holds the lock of the version's folder."""

    async def report_explorer(self, state: dict[str, Any], *, explorer: str) -> None:
        """Keep an explorer's snapshot between two of its steps."""
        text = json.dumps(state)
        await asyncio.to_thread(self.store.keep_snapshot, self.buffer, explorer, text, **self.scope)

    async def finish_explorer(self, *, explorer: str) -> None:
        """Nothing to say: the store knows which producers are finished."""

    # ------------------------------------------------------------------- either
    async def newest_version(self) -> int:
        """Return the newest published version; 0 is the initial model."""
        return self._news().version

    async def newest(self) -> tuple[int, str]:
        """Return number and fingerprint of the newest version.

        Version 0 without a fingerprint is the model as loaded.
        """
        news = self._news()
        return news.version, news.fingerprint

    async def is_trainer_finished(self) -> bool:
        """Return whether the trainer will publish no further version."""
        return self._news().is_finished

    async def is_explorer_expected(self) -> bool:
        """Return whether a producer is open or may still open.

        The latter holds while a part of the job is alive that may become a producer.

        An explorer may have begun since the store was last seen with all producers finished.
        """
        known = await asyncio.to_thread(self.store.producers, self.buffer, **self.scope)
        names = {path.stem for path in part_lock(self.job_dir, "").parent.glob("?*.lock")}
        others = names - known.keys() - {TRAINER, BENCH}
        return any(known.values()) or any(is_held(part_lock(self.job_dir, name)) for name in others)

    def _news(self) -> TrainerNews:
        """Return what the trainer said last.

        Raises:
            SyncError: its file cannot be read (E7041).
        """
        path = self.job_dir / STATE_FILE
        try:
            values = {"fingerprint": ""} | json.loads(path.read_text(encoding="utf-8"))
            return TrainerNews(**{each.name: values[each.name] for each in fields(TrainerNews)})
        except FileNotFoundError:
            return self._own
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SyncError(
                f"{path} is not what a trainer of this version writes ({type(error).__name__}: {error}); start the "
                "trainer again, which writes it again",
                code="E7041",
            ) from error

    async def is_requested(self) -> bool:
        """Return false: an explorer that runs apart takes what there is."""
        return False

    async def _say(self, **changes: Any) -> None:
        self._own = replace(self._own, **changes)
        text = json.dumps(asdict(self._own), indent=1, sort_keys=True)
        try:
            await asyncio.to_thread(write_atomically, self.job_dir / STATE_FILE, text)
        except OSError as error:
            from trinity.common.weights.files import unpublished

            raise unpublished(self._own.version, self.job_dir, error) from error

    async def _until(
        self, condition: Callable[[TrainerNews], bool], what: str, *, timeout_s: float | None = None
    ) -> None:
        limit = self.timeout_s if timeout_s is None else timeout_s
        deadline, polls = time.monotonic() + limit, 0
        while not condition(news := self._news()):
            if time.monotonic() > deadline:
                raise SyncError(
                    f"timed out after {limit:g} s waiting for {what} (the trainer's newest is {news.version}, and "
                    f"{'it is running' if self._is_alive(news) else 'no trainer is running'} in {self.job_dir}); "
                    "raise synchronizer.sync_timeout if a step takes longer",
                    code="E5501",
                )
            # One that has said nothing yet may be about to: loading its model takes a while.
            if polls % ALIVE_EVERY == ALIVE_EVERY - 1 and (news.name or polls * POLL_S > ALONE_S):
                self._look_for_trainer(news, what)
            polls += 1
            await asyncio.sleep(POLL_S)

    def _is_alive(self, news: TrainerNews) -> bool:
        return bool(news.name) and is_held(part_lock(self.job_dir, TRAINER))

    def _look_for_trainer(self, news: TrainerNews, what: str) -> None:
        """Tell once when nobody is there who could publish."""
        if self._is_alive(news):
            self._is_told = False
        elif not self._is_told:
            self._is_told = True
            way = note_of(part_lock(self.job_dir, TRAINER))
            logger.warning(
                "waiting for %s, and no trainer is running in %s; start it%s",
                what,
                self.job_dir,
                f" again: {way}" if way else " with mode train under the same project and name",
            )


def _is_newer_than(version: int) -> Callable[[TrainerNews], bool]:
    return lambda news: news.is_finished or news.version > version
