"""Which weights serve which explore step, and when the trainer publishes.

The fixed schedule is a function of the step. With interval `i` and offset `o`, explore steps 1 .. i+o run on the
initial weights; then every `i` explore steps the explorer takes the weights that the trainer published after as many
of its own intervals. A version is the number of the training step that produced the weights, so one rollout followed
by two optimizer steps has explorer interval 1 and trainer interval 2, and explore step k is served by version
2 (k - 1).

Under the other styles the explorer takes the newest version there is, so that timing decides which; a bound on
staleness then delays explore steps.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from trinity.common.constants import Mode, StorageType, SyncStyle

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

    is_fixed: ClassVar[Literal[True]] = True

    explorer_interval: int = 1
    trainer_interval: int = 1
    offset: int = 0

    def version_for(self, explore_step: int) -> int:
        """Return the version that serves explore step `explore_step`.

        Steps count from 1; version 0 is the initial model.
        """
        rounds = max(0, explore_step - 1 - self.offset) // self.explorer_interval
        return rounds * self.trainer_interval

    def is_sync_point(self, explore_step: int) -> bool:
        """Return whether `explore_step` is the first that a version may serve."""
        ahead = explore_step - 1 - self.offset
        return ahead > 0 and ahead % self.explorer_interval == 0

    def is_published(self, training_step: int) -> bool:
        """Return whether the trainer publishes its weights after `training_step`."""
        return training_step % self.trainer_interval == 0

    def oldest_needed(self, explore_step: int, *, newest: int) -> int:
        """Return the oldest version that `explore_step` or later steps may use."""
        return min(self.version_for(explore_step), newest)

    def newest_at(self, training_step: int) -> int:
        """Return the newest version that there is after `training_step`."""
        return training_step - training_step % self.trainer_interval

    @property
    def keeps_history(self) -> bool:
        """Whether the explorer may serve a version older than the newest."""
        return self.explorer_interval > 1 or self.offset > 0 or self.trainer_interval > 1


@dataclass(frozen=True)
class DynamicSchedule:
    """The styles in which the explorer takes the trainer's newest version.

    Attributes:
        style: `dynamic_by_explorer` (the trainer publishes when it is asked), `dynamic_by_trainer` (the explorer takes
            what there is before each step), or `fully_async` (also while rollouts are under way).
        explorer_interval: explore steps between two requests, >= 1.
        trainer_interval: training steps between two versions that nobody has asked for, >= 1.
        offset: explore steps before the first request, >= 0.
        is_apart: explorer and trainer meet in files, where nobody can ask: versions come every `trainer_interval`.
    """

    is_fixed: ClassVar[Literal[False]] = False

    style: SyncStyle
    explorer_interval: int = 1
    trainer_interval: int = 1
    offset: int = 0
    is_apart: bool = False

    keeps_history = True  # nobody waits for a version by its number, so no live tensors are published

    def is_requested_before(self, explore_step: int) -> bool:
        """Return whether the explorer requests weights before `explore_step`."""
        ahead = explore_step - 1 - self.offset
        is_asking = self.style == SyncStyle.DYNAMIC_BY_EXPLORER
        return is_asking and ahead > 0 and ahead % self.explorer_interval == 0

    def is_published(self, training_step: int) -> bool:
        """Return whether the trainer publishes unasked after `training_step`."""
        is_unasked = self.is_apart or self.style != SyncStyle.DYNAMIC_BY_EXPLORER
        return is_unasked and training_step % self.trainer_interval == 0

    def oldest_needed(self, explore_step: int, *, newest: int) -> int:
        """Return the newest version: no older one is asked for."""
        return newest

    def newest_at(self, training_step: int) -> int:
        """Return the newest version after a restart at `training_step`: its own."""
        return training_step


Schedule = FixedSchedule | DynamicSchedule


def sync_schedule(config: Config) -> Schedule:
    """Return the schedule that a resolved configuration describes."""
    if _meets_no_trainer(config):
        return FixedSchedule(offset=sys.maxsize)
    sync = config.synchronizer
    explorer, trainer = sync.explorer_sync_interval, sync.trainer_sync_interval
    intervals = (explorer or sync.sync_interval, trainer or sync.sync_interval, sync.sync_offset)
    style = SyncStyle(sync.sync_style)
    if style == SyncStyle.FIXED:
        return FixedSchedule(*intervals)
    return DynamicSchedule(style, *intervals, is_apart=config.mode != Mode.BOTH)


def _meets_no_trainer(config: Config) -> bool:
    """Return whether every explore step uses the initial model.

    Such rollouts go to a file, which no trainer reads.
    """
    buffer = config.buffer.trainer_input.experience_buffer
    explores = config.mode in (Mode.EXPLORE, Mode.SERVE)
    return explores and buffer is not None and buffer.storage_type == StorageType.FILE
