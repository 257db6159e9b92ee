"""Live progress of a run: a display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console

from trinity.cli.live import Figures, LiveDisplay, in_language, one_line, rollout_line
from trinity.common.errors import TrinityError
from trinity.monitor import headline
from trinity.summary.words import LIVE
from trinity.summary.words import is_chinese as reads_chinese

if TYPE_CHECKING:
    from trinity.common.config import StagePlan
    from trinity.launch.samples import LatestRollout

PLAIN_INTERVAL_S = 5.0
ROLLOUTS_INTERVAL_S = 5.0
PLAIN_ROLLOUTS_INTERVAL_S = 30.0
READING_S = 5.0

Reader = Callable[[], "list[LatestRollout]"]


class Progress:
    """Shows the progress of a run in a terminal or as plain lines.

    Shows stage, step, loss or reward, evaluation accuracy, tokens per second, staleness, mismatch and remaining time,
    and the latest rollouts: a few on a terminal, the newest now and then elsewhere.

    Args:
        is_live: a display that moves, or plain lines; None: the first if the console is a terminal.
        console: the output; standard error by default, which keeps standard output free for results.
        interval_s: least time between two plain lines, in seconds. Evaluations and last steps are always shown.
        rollouts_interval_s: least time between two looks at the rollouts, in seconds; None: 5 of a display, and 30
            between two plain lines.
        is_chinese: the language of its words; None: as the environment says.
        clock: returns seconds from a fixed point.
    """

    def __init__(
        self,
        *,
        is_live: bool | None = None,
        console: Console | None = None,
        interval_s: float = PLAIN_INTERVAL_S,
        rollouts_interval_s: float | None = None,
        is_chinese: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Console(stderr=True)
        self.is_live = self.console.is_terminal if is_live is None else is_live
        self._interval_s = interval_s
        usual_s = ROLLOUTS_INTERVAL_S if self.is_live else PLAIN_ROLLOUTS_INTERVAL_S
        self._rollouts_interval_s = usual_s if rollouts_interval_s is None else rollouts_interval_s
        self._is_chinese = reads_chinese(os.environ) if is_chinese is None else is_chinese
        self._clock = clock
        self._lock = threading.Lock()
        self._stage = ""
        self._totals: dict[str, int | None] = {}
        self._figures = Figures()
        self._started = self._shown = self._looked = 0.0
        self._shown_step = 0
        self._first: tuple[int, float] | None = None
        self._display: LiveDisplay | None = None
        self._reader: Reader | None = None
        self._reading: threading.Thread | None = None
        self._note = ""

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
        from trinity.launch.samples import rollouts_of

        # This process of a run on Ray imports no torch, which reading takes: the explorer's hands them over.
        reader = None if stage.config.cluster.runtime == "ray" else rollouts_of(stage.config)
        self.start(stage.name or stage.config.name, totals=steps_by_actor(stage.config), rollouts=reader)

    def start(self, stage: str, *, totals: Mapping[str, int | None], rollouts: Reader | None = None) -> None:
        """Begin a stage; end the display of an earlier one.

        Args:
            stage: its name.
            totals: number of steps by name of actor; None where it is not known. The first actor's steps are counted.
            rollouts: returns the latest ones, the newest first; None: there are none to be shown.
        """
        self.stop()
        with self._lock:
            self._stage, self._totals, self._figures = stage, dict(totals), Figures()
            self._started, self._shown, self._first = self._clock(), float("-inf"), None
            self._shown_step, self._looked = 0, float("-inf")
            self._reader, self._note = rollouts, ""
            if self.is_live:
                self._display = LiveDisplay(self.console, stage, total=self._total, is_chinese=self._is_chinese)

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
                self._first = (step, self._clock()) if self._first is None else self._first
            is_last = is_counted and self._total is not None and step >= self._total
            self._show(is_due=has_evaluation or is_last)
            if headline.reward(data) is not None:
                self._look()

    def on_rollouts(self, rollouts: list[LatestRollout], note: str) -> None:
        """Show the latest rollouts, or why there are none.

        Between plain lines that is only now and then.
        """
        with self._lock:
            now = self._clock()
            if now - self._looked >= self._rollouts_interval_s or self._display is not None:
                self._looked = now
                self._show_rollouts(rollouts, note)

    def stop(self) -> None:
        """End the display of the stage; calling it twice is harmless."""
        reading = self._reading
        if reading is not None:
            reading.join(READING_S)
        with self._lock:
            self._reader = None
            display, self._display = self._display, None
            if display is None and self._figures.step > self._shown_step:
                self._show(is_due=True)
        if display is not None:
            display.stop()

    def _set_total(self, actor: str, total: int, step: int) -> None:
        """Set the number of steps of one actor, which is now at `step`."""
        self._totals[actor] = total
        if actor == self._counted and self._display is not None:
            self._display.set_total(total, step)

    def _look(self) -> None:
        """Read the latest rollouts beside the run, unless that was done lately."""
        now = self._clock()
        is_busy = self._reading is not None and self._reading.is_alive()
        if self._reader is None or is_busy or now - self._looked < self._rollouts_interval_s:
            return
        self._looked = now
        self._reading = threading.Thread(target=self._read, args=(self._reader,), name="rollouts", daemon=True)
        self._reading.start()

    def _read(self, reader: Reader) -> None:
        """Show the latest rollouts, or why they cannot be read."""
        found: list[LatestRollout] = []
        note = ""
        try:
            found = reader()
        except (TrinityError, OSError) as error:
            note = str(error)
        with self._lock:
            if reader is self._reader:  # otherwise it is of a stage that has ended
                self._show_rollouts(found, note)

    def _show_rollouts(self, found: list[LatestRollout], note: str) -> None:
        if note:
            note = in_language(LIVE["unread"], is_chinese=self._is_chinese).format(one_line(note))
        is_new, self._note = note != self._note, note
        if self._display is not None:
            self._display.show_rollouts(found, note)
        elif not self.is_live:
            lines = [rollout_line(found[0], is_chinese=self._is_chinese)] if found else [note] * is_new
            for line in filter(None, lines):
                self.print_line(f"[{self._stage}] {line}")

    @property
    def _counted(self) -> str:
        return next(iter(self._totals), "")

    @property
    def _total(self) -> int | None:
        return self._totals.get(self._counted)

    def _show(self, *, is_due: bool) -> None:
        text = self._figures.text(is_chinese=self._is_chinese)
        if self._display is not None:
            self._display.show(self._figures.step, text)
            return
        now = self._clock()
        if self.is_live or not (is_due or now - self._shown >= self._interval_s):
            return
        self._shown, self._shown_step = now, self._figures.step
        steps = f"{self._figures.step}/{self._total}" if self._total else str(self._figures.step)
        step = in_language(LIVE["step"], is_chinese=self._is_chinese).format(steps)
        line = f"[{self._stage}] {step}  {text}{self._remaining(now)}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _remaining(self, now: float) -> str:
        """Return the remaining time in words, from the steps done in this stage.

        The first one, which comes after loading, counts only while it is the only one.
        """
        if self._total is None or self._first is None or self._figures.step >= self._total:
            return ""
        step, since = self._first
        done = self._figures.step - step
        each = (now - since) / done if done > 0 else now - self._started
        seconds = each * (self._total - self._figures.step)
        left = in_language(LIVE["left"], is_chinese=self._is_chinese)
        return f"  {left.format(f'{int(seconds) // 60}:{int(seconds) % 60:02d}')}"
