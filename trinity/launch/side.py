"""What both sides of a run share: their monitors, and an end that closes everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.monitor.monitor import Monitor
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.common.config import Config

logger = get_logger("launch")

MetricsListener = Callable[[str, int, Mapping[str, float]], None]


def open_monitor(config: Config, actor: str, listener: MetricsListener | None) -> Monitor:
    """Return the monitor of one component of a job."""
    return Monitor(
        Path(config.checkpoint_job_dir),
        project=config.project,
        name=config.name,
        actor=actor,
        monitor_type=config.monitor.monitor_type,
        monitor_args=config.monitor.monitor_args,
        listener=listener,
    )


async def close_all(closers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call every closer in turn, whatever the others do.

    Raises:
        Exception: the first failure, after all were called.
    """
    first: Exception | None = None
    for close in closers:
        try:
            await close()
        except Exception as error:  # noqa: BLE001  plugins are closed here; the others must be closed all the same
            logger.warning("%s failed: %s", getattr(close, "__qualname__", close), error)
            first = first or error
    if first is not None:
        raise first
