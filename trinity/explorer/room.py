"""Back-pressure: the explorer waits until a full queue has room."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trinity.common.errors import DeadlineError
from trinity.runtime.worker_thread import WorkerThread

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.synchronizer.base import Synchronizer

LOOK_S = 0.5  # between two looks at whether the trainer has finished


async def wait_for_room(
    store: ExperienceStore,
    producer: tuple[str, str],
    scope: Mapping[str, str],
    *,
    io: WorkerThread,
    synchronizer: Synchronizer,
    timeout_s: float,
) -> float:
    """Return the seconds until the queue had room, or until the trainer had finished and will take nothing.

    Raises:
        DeadlineError: neither within `timeout_s`, which is `synchronizer.sync_timeout` (E5142).
    """
    started = time.monotonic()
    while not await io.call(store.wait_for_room, *producer, timeout_s=LOOK_S, **scope):
        if await synchronizer.is_trainer_finished():
            break
        if time.monotonic() - started >= timeout_s:
            raise DeadlineError(
                f"buffer {producer[0]!r} is full (capacity {store.capacity}) and the trainer took nothing for "
                f"{timeout_s:g} s; look at the trainer's log, or raise synchronizer.sync_timeout or "
                "buffer.trainer_input.experience_buffer.capacity",
                code="E5142",
            )
    return time.monotonic() - started
