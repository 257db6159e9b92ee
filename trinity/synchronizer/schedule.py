"""The fixed schedule: which weights serve which explore step.

With interval `i` and offset `o`, explore steps 1 .. i+o run on the initial weights; then every `i` explore steps
the explorer takes the weights that the trainer published after as many of its own intervals. A version is the number of
the training step that produced the weights, so one rollout followed by two optimizer steps has explorer interval 1 and
trainer interval 2, and explore step k is served by version 2 (k - 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trinity.common.config import Config


@dataclass(frozen=True)
class FixedSchedule:
    """Which model version serves which explore step.

    Attributes:
        explorer_interval: explore steps between two weight updates, >= 1.
        trainer_interval: training steps between two published versions, >= 1.
        offset: explore steps that the explorer runs ahead, >= 0.
    """

    explorer_interval: int = 1
    trainer_interval: int = 1
    offset: int = 0

    def version_for(self, explore_step: int) -> int:
        """Return the version that serves explore step `explore_step` (counted from 1); 0 is the initial model."""
        rounds = max(0, explore_step - 1 - self.offset) // self.explorer_interval
        return rounds * self.trainer_interval

    def is_sync_point(self, explore_step: int) -> bool:
        """Return whether explore step `explore_step` is the first that a version may serve."""
        ahead = explore_step - 1 - self.offset
        return ahead > 0 and ahead % self.explorer_interval == 0

    def is_published(self, training_step: int) -> bool:
        """Return whether the trainer publishes its weights after `training_step`."""
        return training_step % self.trainer_interval == 0

    @property
    def keeps_history(self) -> bool:
        """Whether the explorer may serve an older version than the trainer's newest."""
        return self.explorer_interval > 1 or self.offset > 0 or self.trainer_interval > 1


def schedule_of(config: Config) -> FixedSchedule:
    """Return the synchronization schedule that a resolved configuration describes."""
    sync = config.synchronizer
    return FixedSchedule(
        explorer_interval=sync.explorer_sync_interval or sync.sync_interval,
        trainer_interval=sync.trainer_sync_interval or sync.sync_interval,
        offset=sync.sync_offset,
    )
