"""The bound of a history that nobody extracts."""

from __future__ import annotations

from trinity.common.experience import Experience
from trinity.utils.log import get_logger

logger = get_logger("explorer")


def drop_oldest(history: list[Experience], limit: int, *, dropped: int) -> int:
    """Leave the newest experiences; return how many were dropped so far.

    The first time is told, and every further `limit` of them.

    Args:
        history: shortened in place.
        limit: `history_limit` of the model.
        dropped: before this call.
    """
    excess = max(0, len(history) - limit)
    del history[:excess]
    if excess and (not dropped or dropped // limit != (dropped + excess) // limit):
        logger.warning(
            "a history holds %d experiences (explorer.rollout_model.history_limit) and nobody extracts them: the "
            "oldest %d were dropped; call extract_experience_from_history, or set enable_history: false",
            limit,
            dropped + excess,
        )
    return dropped + excess
