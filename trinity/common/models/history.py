"""The history of a model's calls, which is bounded if nobody extracts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trinity.common.experience import Experience
from trinity.utils.log import get_logger

logger = get_logger("explorer")


class History(list[Experience]):
    """The newest experiences of calls, in their order.

    Args:
        limit: how many at most, `history_limit` of the model.

    Attributes:
        dropped: older ones that had to go. The first time is reported, and every further `limit` of them.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.dropped = 0

    def recorder(self, is_on: bool) -> Callable[[list[Experience]], list[Experience]]:
        """Return what keeps, if `is_on`, what a call returns that begins now.

        The call's model may have the history of another rollout when they come, see `ModelWrapper.take_over`.
        """

        def record(experiences: list[Experience]) -> list[Experience]:
            if is_on:
                self.keep(experiences)
            return experiences

        return record

    def keep(self, experiences: Sequence[Experience]) -> None:
        """Add experiences; drop the oldest above the limit."""
        self.extend(experiences)
        excess = max(0, len(self) - self.limit)
        del self[:excess]
        before, self.dropped = self.dropped, self.dropped + excess
        if excess and (not before or before // self.limit != self.dropped // self.limit):
            logger.warning(
                "a history holds %d experiences (explorer.rollout_model.history_limit) and nobody extracts them: the "
                "oldest %d were dropped; call extract_experience_from_history, or set enable_history: false",
                self.limit,
                self.dropped,
            )
