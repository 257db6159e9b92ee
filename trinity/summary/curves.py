"""The curves and totals of a job, read from its metrics in one pass.

Of each line only a few numbers are kept, so that a long run needs little memory.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trinity.monitor import headline
from trinity.monitor.jsonl import metrics_after, metrics_of
from trinity.monitor.monitor import METRICS_FILE

Points = list[tuple[int, float]]

LENGTH = "response_length/mean"
TIMES = {
    "time/explore_step": "explore",
    "time/train_step": "train",
    "time/sync_weight": "sync",
    "time/eval": "evaluate",
    "time/save_checkpoint": "save",
    "time/read_experience": "wait_for_experiences",
    "time/wait_weight": "wait_for_weights",
}
"""Metrics of seconds, and the part of a run that they belong to."""
COUNTS = {
    "actor/skipped_steps": "skipped_steps",
    "rollout/prompt_truncated_count": "truncated_prompts",
    "rollout/response_truncated_count": "truncated_responses",
    "rollout/retry_count": "retried_attempts",
}
"""Metrics of what was left out or done again, and its name."""
GENERATED = "perf/engine/generated_tokens"
SEEN_BYTES = 256
"""Of the last line that was read: it tells whether the file before it is still the same."""
PACE_STEPS = 50
"""Last steps whose time says how long the next ones will take."""
VERSIONS = ("eval/model_version", "bench/model_version", "rollout/model_version")


@dataclass(frozen=True)
class StageCurves:
    """The curves of a job over its steps, and its totals.

    Attributes:
        loss: of training steps.
        reward: the mean over the rollouts of an explore step, or their accuracy.
        length: mean length of a response in tokens, by explore step.
        evaluations: the mean of each metric by name, over explore steps; of mode bench, over training steps.
        versions: training step of the weights that were evaluated or that explored, by name of metric and step.
        reward_name: the metric that `reward` is; empty: there is none.
        loss_name: the metric that `loss` is; empty: there is none.
        num_steps: last training step.
        num_tokens: tokens of all training steps.
        num_generated: tokens that engines here have sampled, evaluations included; None: they were not counted.
        seconds: time of each part of the run; parts overlap.
        counts: of what was left out or done again, without zeros.
        has_fates: whether rollouts were counted.
        pace: seconds from one step to the next by actor, the median over its last steps.
    """

    loss: Points = field(default_factory=list)
    reward: Points = field(default_factory=list)
    length: Points = field(default_factory=list)
    evaluations: Mapping[str, Points] = field(default_factory=dict)
    versions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    reward_name: str = ""
    loss_name: str = ""
    num_steps: int = 0
    num_tokens: float = 0.0
    num_generated: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    has_fates: bool = False
    pace: Mapping[str, float] = field(default_factory=dict)

    @property
    def main_evaluation(self) -> str | None:
        """The evaluation that a person follows.

        It is one of mode bench where there is no other.
        """
        own = [name for name in self.evaluations if name.startswith("eval/")]
        return headline.main_score(own or self.evaluations)

    @property
    def accuracy(self) -> Points:
        """The curve of the main evaluation; empty if nothing was evaluated."""
        return self.evaluations.get(self.main_evaluation or "", [])


class _Means:
    """The mean of a metric at each step, also of several explorers."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, int]] = {}

    def add(self, step: int, value: float) -> None:
        total, number = self._found.get(step, (0.0, 0))
        self._found[step] = total + value, number + 1

    def points(self) -> Points:
        return [(step, total / number) for step, (total, number) in sorted(self._found.items())]


class _Reader:
    """Takes the lines of a job one by one."""

    def __init__(self) -> None:
        self.means: dict[str, _Means] = defaultdict(_Means)
        self.evaluations: dict[str, None] = {}
        self.versions: dict[str, dict[int, int]] = defaultdict(dict)
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, float] = defaultdict(float)
        self.generated: dict[str, tuple[float, float]] = {}
        self.ends: dict[str, deque[tuple[int, float]]] = defaultdict(lambda: deque(maxlen=PACE_STEPS + 1))
        self.num_steps, self.num_tokens, self.has_fates = 0, 0.0, False

    def take(self, line: Mapping[str, Any]) -> None:
        """Take one line."""
        step = int(line["step"])
        for name, value in headline.scores(line).items():
            self.means[name].add(step, value)
            self.evaluations[name] = None
        self._take_first(line, step, headline.LOSS_NAMES)
        if self._take_first(line, step, headline.REWARD_NAMES) and line.get(LENGTH) is not None:
            self.means[LENGTH].add(step, float(line[LENGTH]))
        for name in VERSIONS:
            if line.get(name) is not None:
                self.versions[name][step] = int(line[name])
        for found, totals in ((TIMES, self.seconds), (COUNTS, self.counts)):
            for name, part in found.items():
                totals[part] += line.get(name) or 0.0
        if headline.loss(line) is not None:
            self.num_steps = max(self.num_steps, step)
        self.num_tokens += headline.num_tokens(line) or 0.0
        self._take_generated(str(line.get("actor")), line.get(GENERATED))
        self._take_end(str(line.get("actor")), step, line.get("time"))
        self.has_fates = self.has_fates or "fate/issued" in line

    def _take_first(self, line: Mapping[str, Any], step: int, names: Sequence[str]) -> bool:
        """Take the first of the names that the line has.

        Return whether it has one.
        """
        for name in names:
            if line.get(name) is not None:
                self.means[name].add(step, float(line[name]))
                return True
        return False

    def _take_generated(self, actor: str, value: float | None) -> None:
        """Add up totals that begin again with every start of the engines."""
        if value is None:
            return
        total, last = self.generated.get(actor, (0.0, 0.0))
        self.generated[actor] = total + (value - last if value >= last else value), value

    def _take_end(self, actor: str, step: int, time: float | None) -> None:
        """Note when an actor ended a step; the first line of a step counts."""
        ends = self.ends[actor]
        if time is not None and (not ends or step > ends[-1][0]):
            ends.append((step, float(time)))

    def _pace(self) -> dict[str, float]:
        found = {}
        for actor, ends in self.ends.items():
            steps = [(later[1] - sooner[1]) / (later[0] - sooner[0]) for sooner, later in itertools.pairwise(ends)]
            if steps:
                found[actor] = max(0.0, statistics.median(steps))
        return found

    def curves(self) -> StageCurves:
        """Return what was taken."""
        points = {name: means.points() for name, means in self.means.items()}
        reward, loss = (
            next((name for name in names if name in points), "")
            for names in (headline.REWARD_NAMES, headline.LOSS_NAMES)
        )
        return StageCurves(
            loss=points.get(loss, []),
            reward=points.get(reward, []),
            length=points.get(LENGTH, []),
            evaluations={name: points[name] for name in self.evaluations},
            versions=dict(self.versions),
            reward_name=reward,
            loss_name=loss,
            num_steps=self.num_steps,
            num_tokens=self.num_tokens,
            num_generated=round(sum(total for total, _ in self.generated.values())) if self.generated else None,
            seconds={part: seconds for part, seconds in self.seconds.items() if seconds},
            counts={name: round(number) for name, number in self.counts.items() if number},
            has_fates=self.has_fates,
            pace=self._pace(),
        )


def read_curves(job_dir: Path) -> StageCurves:
    """Return the curves of a job; empty ones if it wrote no metrics."""
    reader = _Reader()
    for line in metrics_of(job_dir / METRICS_FILE):
        reader.take(line)
    return reader.curves()


class GrowingCurves:
    """The curves of a live job; each line is read once.

    Where the file was rewritten, as by a run that goes back to a checkpoint, it is read from its beginning.

    Args:
        job_dir: folder of the job.
    """

    def __init__(self, job_dir: Path) -> None:
        self._file = job_dir / METRICS_FILE
        self._start_over()

    def _start_over(self) -> None:
        self._reader, self._curves = _Reader(), StageCurves()
        self._inode, self._offset, self._last = 0, 0, b""

    def read(self) -> StageCurves:
        """Return the curves with the lines that were added since."""
        try:
            facts = os.stat(self._file)
        except FileNotFoundError:
            self._start_over()
            return self._curves
        if facts.st_ino != self._inode or self._before(self._offset) != self._last:
            self._start_over()
            self._inode = facts.st_ino
        lines, offset = metrics_after(self._file, self._offset)
        for line in lines:
            self._reader.take(line)
        if offset != self._offset:
            self._offset, self._last = offset, self._before(offset)
            self._curves = self._reader.curves()
        return self._curves

    def _before(self, offset: int) -> bytes:
        """Return the bytes before a place; fewer where the file is shorter."""
        begin = max(0, offset - SEEN_BYTES)
        with open(self._file, "rb") as file:
            file.seek(begin)
            return file.read(offset - begin)


def ends(points: Points) -> tuple[float, float]:
    """Return the means of the first and of the last tenth of the points.

    A tenth is one point at least; there must be one.
    """
    size = max(1, len(points) // 10)
    return _mean(points[:size]), _mean(points[-size:])


def _mean(points: Points) -> float:
    return sum(value for _, value in points) / len(points)


def thinned(points: Points, most: int) -> Points:
    """Return at most `most` points: means over equal numbers of steps.

    As many points or fewer are returned as they are.
    """
    if len(points) <= most:
        return points
    bounds = [len(points) * i // most for i in range(most + 1)]
    parts = [points[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
    return [(part[len(part) // 2][0], _mean(part)) for part in parts]
