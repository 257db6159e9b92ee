"""What a model said in evaluations, in files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trinity.common.experience import Experience
from trinity.common.schema.sql_schema import storable_text
from trinity.common.workflows.task import Task, read_option
from trinity.explorer.outcome import BatchResult, Completed, RolloutResult, reason_of
from trinity.utils.disk import write_atomically
from trinity.utils.log import get_logger

logger = get_logger("explorer")


class AnswerFiles:
    """Keeps the answers of every evaluation, one JSON object a line.

    The file of an evaluation is `<folder>/<taskset>/<explorer>_step_<N>.jsonl`. One that is repeated replaces its file.

    Args:
        folder: of all evaluations of a job.
        explorer: who evaluates.
        limit: bytes that the files may have, the newest apart; the oldest go first. 0: nothing is kept.
        temperature: of tasks that have none of their own.
    """

    def __init__(self, folder: Path, *, explorer: str, limit: int, temperature: float) -> None:
        self.folder = folder
        self.explorer = explorer
        self.limit = limit
        self.temperature = temperature
        self._is_told = False

    def write(self, taskset: str, step: int, tasks: Sequence[Task], result: BatchResult) -> None:
        """Write the answers of a taskset after explore step `step`.

        A file system that refuses is warned of: the evaluation itself is in the metrics.
        """
        if not self.limit:
            return
        facts = {"step": step, "taskset": taskset}
        lines = [facts | line for run in result.results for line in self._lines(tasks[run.task], run)]
        file = self.folder / taskset / f"{self.explorer}_step_{step}.jsonl"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines))
            self._remove_oldest()
        except OSError as error:
            logger.warning("the responses of the evaluation after step %d are not kept: %s", step, error)

    def _lines(self, task: Task, run: RolloutResult) -> Iterator[dict[str, Any]]:
        facts = {"task": task.index.get("index", run.task), "run": run.run, "outcome": type(run.outcome).__name__}
        truth = storable_text(task.truth) if isinstance(task.truth, str) else task.truth
        if not isinstance(run.outcome, Completed):
            yield facts | {"reason": storable_text(reason_of(run.outcome)), "truth": truth}
            return
        temperature = read_option(task.rollout_args, "temperature")
        facts["temperature"] = self.temperature if temperature is None else temperature
        for experience in run.outcome.experiences:
            yield facts | _answer(experience) | {"truth": truth}

    def _remove_oldest(self) -> None:
        files = sorted(self.folder.glob("*/*_step_*.jsonl"), key=lambda file: (file.stat().st_mtime_ns, file.name))
        sizes = [file.stat().st_size for file in files]
        total = sum(sizes)
        for file, size in zip(files[:-1], sizes, strict=False):
            if total <= self.limit:
                break
            os.unlink(file)
            total -= size
            if not self._is_told:
                self._is_told = True
                text = "the responses of evaluations exceed buffer.keep_payloads, %g GiB: the oldest files are deleted"
                logger.warning(text, self.limit / (1 << 30))


def _answer(experience: Experience) -> dict[str, Any]:
    return {
        "turn": experience.eid.step,
        "model_version": experience.info.get("model_version"),
        "prompt": storable_text(experience.prompt_text),
        "response": storable_text(experience.response_text),
        "reward": experience.reward,
        "metrics": experience.metrics,
        "num_tokens": len(experience.tokens) - experience.prompt_length,
        "truncated": experience.truncate_status,
    }
