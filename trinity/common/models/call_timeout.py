"""The longest wait of a model call."""

from __future__ import annotations

from trinity.common.config import Config


def call_timeout_s(config: Config) -> float:
    """Return the longest wait of one model call in seconds.

    That is `explorer.max_timeout`. In deterministic mode a round waits for every runner, including hanging ones, so a
    call may take as long as the explorer may fall behind: `synchronizer.sync_timeout`.
    """
    timeout_s = config.explorer.max_timeout
    return max(timeout_s, config.synchronizer.sync_timeout) if config.deterministic else timeout_s
