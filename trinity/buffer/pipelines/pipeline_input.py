"""The input of the experience pipeline, stored before the operators run.

It is stored if `save_input` is set.

    explore step --1--> log of the input --2--> log of the run --3--> lines of the input, if a file is asked for

The log of the input is a separate store. A run that is killed between 1 and 2 explores the step again: so explore steps
that only the first log has are removed from it when the explorer resumes. If a run is killed between 2 and 3, the
missing lines are written from the first log when it resumes. So each experience is exactly once in the log of the input
and in the lines, in the order of the run's log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.buffer.store import ExperienceStore, JSONBackup
from trinity.buffer.store.pruning import NewestSteps
from trinity.buffer.store.validation import in_order
from trinity.common.experience import Experience
from trinity.utils.log import get_logger, redact

if TYPE_CHECKING:
    from trinity.common.config.sections import ExperiencePipelineConfig

BUFFER = "pipeline_input"

logger = get_logger("buffer")


class PipelineInput:
    """Keeps the experiences that come into the pipeline of one explorer.

    Args:
        url: URL of the database with their log.
        producer: name of the explorer.
        scope: `run` and `stage` of the rows.
        copy: file of JSON lines beside the log, with texts, rewards and metrics.
        limit: bytes of payloads that the log keeps of this explorer; None: all of them.
    """

    def __init__(
        self,
        url: str,
        *,
        producer: str,
        scope: Mapping[str, str],
        copy: Path | None = None,
        limit: int | None = None,
    ) -> None:
        self.store = ExperienceStore(url, kept_bytes=None)
        self.copy = None if copy is None else JSONBackup(copy)
        self._key: dict[str, Any] = {"producer": producer, **scope}
        self._newest = NewestSteps(limit)
        self._is_told = False

    @classmethod
    def of(
        cls, section: ExperiencePipelineConfig, *, producer: str, scope: Mapping[str, str], limit: int | None
    ) -> PipelineInput:
        """Return what a resolved configuration asks for by `save_input`."""
        assert section.input_save_path is not None, "the configuration was not resolved"
        copy = None if section.input_copy_path is None else Path(section.input_copy_path)
        return cls(section.input_save_path, producer=producer, scope=scope, copy=copy, limit=limit)

    def open(self, finished_step: int) -> None:
        """Continue after an explore step of the run's log.

        Raises:
            StoreError: the log or the file cannot be used.
        """
        self.store.open()
        number = self.store.take_back(BUFFER, **self._key, after=finished_step)
        if number:
            logger.warning(
                "%s: %d experiences of explore steps after %d, which are not in the log of the run, are taken back",
                redact(self.store.url), number, finished_step,
            )  # fmt: skip
        self.store.open_producer(BUFFER, **self._key)
        if self.copy is not None:
            self.store.complete_backup(BUFFER, **self._key, backup=self.copy)
        logger.info(
            "what comes into the pipeline is written to %s",
            redact(str(self.copy.path if self.copy else self.store.url)),
        )

    def append(self, experiences: Sequence[Experience], *, explore_step: int) -> bool:
        """Store what came into the pipeline in a step; return whether it is new."""
        return self.store.append(BUFFER, experiences, **self._key, explore_step=explore_step).appended > 0

    def complete(self, experiences: Sequence[Experience]) -> None:
        """Write the lines of a new step, once the run's log has it."""
        if self.copy is not None:
            self.copy.write(in_order(experiences))
        number = self.store.prune_waiting(BUFFER, newest=self._newest, **self._key)
        if number and not self._is_told:
            self._is_told = True
            logger.warning(
                "%s has reached buffer.keep_payloads: the payloads of the oldest explore steps go; the texts stay",
                redact(self.store.url),
            )

    def finish(self) -> None:
        """Record that nothing more will come."""
        self.store.close_producer(BUFFER, **self._key)

    def close(self) -> None:
        """Close the log."""
        self.store.close()
