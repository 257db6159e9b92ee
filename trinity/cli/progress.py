"""Live progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from trinity.monitor import headline

if TYPE_CHECKING:
    from trinity.common.config import StagePlan

PLAIN_INTERVAL_S = 5.0
SMOOTHING = 0.2


@dataclass
class _Figures:
    """The last known figures of a stage."""

    step: int = 0
    loss: float | None = None
    reward: float | None = None
    accuracy: float | None = None
    tokens_per_second: float | None = None

    def update(self, data: Mapping[str, float]) -> bool:
        """Take the figures of `data`; return whether it has an evaluation."""
        self.loss = _either(headline.loss(data), self.loss)
        self.reward = _either(headline.reward(data), self.reward)
        speed = headline.tokens_per_second(data)
        if speed is not None:
            before = speed if self.tokens_per_second is None else self.tokens_per_second
            self.tokens_per_second = before + SMOOTHING * (speed - before)
        accuracy = headline.accuracy(data)
        self.accuracy = _either(accuracy, self.accuracy)
        return accuracy is not None

    def text(self) -> str:
        """Return the figures as text; the reward replaces the loss."""
        parts = []
        if self.reward is not None:
            parts.append(f"reward {self.reward:.3f}")
        elif self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.accuracy is not None:
            parts.append(f"eval {self.accuracy:.3f}")
        if self.tokens_per_second is not None:
            parts.append(f"{_short(self.tokens_per_second)} tok/s")
        return "  ".join(parts)


class Progress:
    """Shows the progress of a run in a terminal or as plain lines.

    Shows stage, step, loss or reward, evaluation accuracy, tokens per second and remaining time.

    Args:
        is_live: a bar that moves, or plain lines; None: a bar if the console is a terminal.
        console: the output; standard error by default, which keeps standard output free for results.
        interval_s: least time between two plain lines, in seconds. Evaluations and last steps are always shown.
        clock: returns seconds from a fixed point.
    """

    def __init__(
        self,
        *,
        is_live: bool | None = None,
        console: Console | None = None,
        interval_s: float = PLAIN_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Console(stderr=True)
        self.is_live = self.console.is_terminal if is_live is None else is_live
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stage = ""
        self._totals: dict[str, int | None] = {}
        self._figures = _Figures()
        self._started = self._shown = 0.0
        self._shown_step = 0
        self._first_step: int | None = None
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def print_line(self, text: str) -> None:
        """Print a line of text above the bar, as it is."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def on_stage(self, stage: StagePlan) -> None:
        """Begin the display of a planned stage."""
        from trinity.algorithm.planning import steps_by_actor

        self.start(stage.name or stage.config.name, totals=steps_by_actor(stage.config))

    def start(self, stage: str, *, totals: Mapping[str, int | None]) -> None:
        """Begin a stage; end the display of an earlier one.

        Args:
            stage: its name.
            totals: number of steps by name of actor; None where it is not known. The first actor's steps are counted.
        """
        self.stop()
        with self._lock:
            self._stage, self._totals, self._figures = stage, dict(totals), _Figures()
            self._started, self._shown, self._first_step = self._clock(), float("-inf"), None
            self._shown_step = 0
            if self.is_live:
                self._bar = _new_bar(self.console)
                self._task = self._bar.add_task(stage, total=self._total, figures="")
                self._bar.start()

    def on_metrics(self, actor: str, step: int, data: Mapping[str, float]) -> None:
        """Record the metrics of one step of one actor; thread-safe."""
        with self._lock:
            if headline.CHECKPOINT in data:
                return
            if headline.TOTAL_STEPS in data:
                self._set_total(actor, int(data[headline.TOTAL_STEPS]), step)
                return
            has_evaluation = self._figures.update(data)
            is_counted = actor == self._counted
            if is_counted:
                self._figures.step = max(self._figures.step, step)
                self._first_step = step if self._first_step is None else self._first_step
            is_last = is_counted and self._total is not None and step >= self._total
            self._show(is_due=has_evaluation or is_last)

    def stop(self) -> None:
        """End the display of the stage; calling it twice is harmless."""
        with self._lock:
            bar, self._bar = self._bar, None
            if bar is None and self._figures.step > self._shown_step:
                self._show(is_due=True)
        if bar is not None:
            bar.stop()

    def _set_total(self, actor: str, total: int, step: int) -> None:
        """Set the number of steps of one actor, which is now at `step`."""
        self._totals[actor] = total
        if actor == self._counted and self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, completed=step)

    @property
    def _counted(self) -> str:
        return next(iter(self._totals), "")

    @property
    def _total(self) -> int | None:
        return self._totals.get(self._counted)

    def _show(self, *, is_due: bool) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._figures.step, figures=self._figures.text())
            return
        now = self._clock()
        if self.is_live or not (is_due or now - self._shown >= self._interval_s):
            return
        self._shown, self._shown_step = now, self._figures.step
        steps = f"{self._figures.step}/{self._total}" if self._total else str(self._figures.step)
        line = f"[{self._stage}] step {steps}  {self._figures.text()}{self._remaining(now)}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _remaining(self, now: float) -> str:
        """Return the remaining time in words, from the steps done in this stage."""
        if self._total is None or self._first_step is None or self._figures.step >= self._total:
            return ""
        done = self._figures.step - self._first_step + 1
        seconds = (now - self._started) / done * (self._total - self._figures.step)
        return f"  ETA {int(seconds) // 60}:{int(seconds) % 60:02d}"


def _new_bar(console: Console) -> RichProgress:
    return RichProgress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=False,
    )


def _either(new: float | None, old: float | None) -> float | None:
    return old if new is None else new


def _short(value: float) -> str:
    """Return a number with three digits or so: 950, 12.3k."""
    return f"{value:.0f}" if value < 1000 else f"{value / 1000:.1f}k"
