"""Back-pressure: the explorer waits until a full queue has room.

Before the experiences of an explore step are stored:

    pipeline done --> room? --yes--> store the experiences
                      |  ^
                   no |  | look again every LOOK_S
                      v  |
                      wait --trainer finished--> store the experiences
                       |
                       +--timeout_s------------> DeadlineError (E5142)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trinity.common.errors import DeadlineError

if TYPE_CHECKING:
    from trinity.explorer.producer import Producer
    from trinity.synchronizer.base import Synchronizer

LOOK_S = 0.5  # between two looks at whether the trainer has finished


async def wait_for_room(producer: Producer, synchronizer: Synchronizer, *, timeout_s: float) -> float:
    """Wait until the queue has room; return the wait in seconds.

    The wait also ends when the trainer has finished and will read nothing more.

    Raises:
        DeadlineError: neither within `timeout_s`, which is `synchronizer.sync_timeout` (E5142).
    """
    started = time.monotonic()
    while not await producer.has_room(wait_s=LOOK_S):
        if await synchronizer.is_trainer_finished():
            break
        if time.monotonic() - started >= timeout_s:
            raise DeadlineError(
                f"buffer {producer.buffer!r} is full (capacity {producer.store.capacity}) and the trainer took nothing "
                f"for {timeout_s:g} s; look at the trainer's log, or raise synchronizer.sync_timeout or "
                "buffer.trainer_input.experience_buffer.capacity",
                code="E5142",
            )
    return time.monotonic() - started
