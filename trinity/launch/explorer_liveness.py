"""Liveness of separate explorers: which joined and which died.

The trainer's side uses it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trinity.utils.locks import is_held, note_of, part_lock
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.buffer.store import ExperienceStore
    from trinity.common.config import Config

logger = get_logger("launch")

WATCH_S = 1.0
ALONE_S = 10.0
AGAIN_S = 60.0


def _stored(config: Config, runs: list[str]) -> str:
    """Return what the database has of other runs, and how to train on it."""
    if not runs:
        return ""
    return (
        f". The database has rollouts of {', '.join(runs)}, and a run trains on its own rollouts only: to train on "
        "those of another run, stop this one, and score them again for it with "
        f"`trinity rescore JOB --for {config.project}/{config.name} -o DATABASE`"
    )


async def watch_explorers(config: Config, store: ExperienceStore) -> NoReturn:
    """Warn of explorers that ended unfinished.

    The warning comes once and then every minute. Runs until it is cancelled.

    An explorer that died is one whose buffer is still open and whose lock is free. The trainer continues with the
    others, and none of them waits for it. What the dead one had stored is trained, and it continues after its last
    stored step when it is started again.
    """
    from trinity.explorer.assembly import experience_buffer, store_scope

    job_dir, started = Path(config.checkpoint_job_dir), time.monotonic()
    place = {"buffer": experience_buffer(config), **store_scope(config)}
    told: dict[str, float] = {}
    is_alone_told = False
    while True:
        producers = await asyncio.to_thread(store.producers, **place)
        now = time.monotonic()
        if not producers and not is_alone_told and now - started > ALONE_S:
            is_alone_told = True
            others = await asyncio.to_thread(store.runs, experience_buffer(config))
            logger.warning(
                "no explorer has joined %s yet; start one with mode explore under project %s and name %s%s",
                *(job_dir, config.project, config.name, _stored(config, [run for run, _ in others])),
            )
        for name, is_open in producers.items():
            lock = part_lock(job_dir, name)
            if not is_open or is_held(lock):
                if told.pop(name, None) is not None and is_open:
                    await asyncio.to_thread(store.note_presence, producer=name, is_there=True, **place)
                    logger.info("explorer %s is back", name)
            elif now - told.get(name, -AGAIN_S) >= AGAIN_S:
                if name not in told:
                    await asyncio.to_thread(store.note_presence, producer=name, is_there=False, **place)
                told[name] = now
                logger.warning(
                    "explorer %s has died: it ended without being finished; start it again, it continues after its "
                    "last stored step: %s",
                    name, note_of(lock) or f"mode explore with explorer.name {name}",
                )  # fmt: skip
        await asyncio.sleep(WATCH_S)
