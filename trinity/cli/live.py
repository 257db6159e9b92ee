"""What a terminal shows while a run is running.

A bar, the figures, and the latest rollouts below them; a model's words are shown as text on one line each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text as RichText

from trinity.monitor import headline
from trinity.summary.words import LIVE, Text
from trinity.utils.printable import printable

if TYPE_CHECKING:
    from trinity.launch.samples import LatestRollout

SMOOTHING = 0.2
MOST_CHARACTERS = 200


@dataclass
class Figures:
    """The last known figures of a stage.

    Attributes:
        step: the last one of the actor whose steps count.
        loss: of training.
        reward: the mean of an explore step, or its accuracy.
        accuracy: of the last evaluation.
        trained_per_s: tokens per second of training steps, smoothed.
        sampled_per_s: tokens per second of explore steps, smoothed.
        staleness: training steps between the weights that sampled and those that learn.
        mismatch: nats per token between engine and trainer, where the weights are the same.
    """

    step: int = 0
    loss: float | None = None
    reward: float | None = None
    accuracy: float | None = None
    trained_per_s: float | None = None
    sampled_per_s: float | None = None
    staleness: float | None = None
    mismatch: float | None = None

    def update(self, data: Mapping[str, float]) -> bool:
        """Take the figures of `data`; return whether it has an evaluation."""
        self.loss = _either(headline.loss(data), self.loss)
        self.reward = _either(headline.reward(data), self.reward)
        self.trained_per_s = _smoothed(headline.tokens_per_second(data), self.trained_per_s)
        self.sampled_per_s = _smoothed(headline.rollout_tokens_per_second(data), self.sampled_per_s)
        self.staleness = _either(headline.staleness(data), self.staleness)
        self.mismatch = _either(headline.mismatch(data), self.mismatch)
        accuracy = headline.accuracy(data)
        self.accuracy = _either(accuracy, self.accuracy)
        return accuracy is not None

    def text(self, *, is_chinese: bool = False) -> str:
        """Return the figures as text; the reward replaces the loss."""
        shown = (
            ("reward", self.reward, "{:.3f}"),
            ("loss", self.loss if self.reward is None else None, "{:.4f}"),
            ("evaluation", self.accuracy, "{:.3f}"),
            ("trained", self.trained_per_s, ""),
            ("sampled", self.sampled_per_s, ""),
            ("staleness", self.staleness, "{:.1f}"),
            ("mismatch", self.mismatch, "{:.1e}"),
        )
        return "  ".join(
            in_language(LIVE[name], is_chinese=is_chinese).format(form.format(value) if form else _short(value))
            for name, value, form in shown
            if value is not None
        )


class LiveDisplay:
    """A bar that moves, the figures, and a panel of rollouts.

    Args:
        console: a terminal.
        stage: its name.
        total: number of steps; None: not known yet.
        is_chinese: the language of its words.
    """

    def __init__(self, console: Console, stage: str, *, total: int | None, is_chinese: bool) -> None:
        self._is_chinese = is_chinese
        self._bar = _new_bar(console, in_language(LIVE["left"], is_chinese=is_chinese).format("").strip())
        self._task = self._bar.add_task(stage, total=total)
        self._figures, self._note = "", ""
        self._rollouts: list[LatestRollout] = []
        self._live = Live(console=console, get_renderable=self._shown, refresh_per_second=4)
        self._live.start()

    def set_total(self, total: int, step: int) -> None:
        """Take the number of steps once it is known."""
        self._bar.update(self._task, total=total, completed=step)

    def show(self, step: int, figures: str) -> None:
        """Show a step and the figures."""
        self._bar.update(self._task, completed=step)
        self._figures = figures

    def show_rollouts(self, rollouts: Sequence[LatestRollout], note: str) -> None:
        """Show rollouts, or why there are none."""
        self._rollouts, self._note = list(rollouts), note

    def stop(self) -> None:
        """Leave what is shown on the terminal."""
        self._live.stop()

    def _shown(self) -> RenderableType:
        parts: list[RenderableType] = [self._bar]
        if self._figures:
            parts.append(RichText(f"  {self._figures}", no_wrap=False))
        if self._rollouts:
            parts.append(rollout_table(self._rollouts, is_chinese=self._is_chinese))
        if self._note:
            parts.append(RichText(f"  {one_line(self._note)}"))
        return Group(*parts)


def rollout_table(rollouts: Sequence[LatestRollout], *, is_chinese: bool) -> Table:
    """Return rollouts as a table of one line each."""
    table = Table(
        title=in_language(LIVE["latest"], is_chinese=is_chinese), title_justify="left", expand=True, show_edge=False
    )
    for name in ("reward_of", "advantage"):
        table.add_column(in_language(LIVE[name], is_chinese=is_chinese), justify="right", no_wrap=True)
    for name in ("prompt", "response"):
        table.add_column(in_language(LIVE[name], is_chinese=is_chinese), ratio=1, no_wrap=True, overflow="ellipsis")
    for each in rollouts:
        numbers = ("-" if number is None else f"{number:.3f}" for number in (each.reward, each.advantage))
        table.add_row(*numbers, *(RichText(one_line(text)) for text in (each.prompt, each.response)))
    return table


def rollout_line(rollout: LatestRollout, *, is_chinese: bool) -> str:
    """Return a rollout as plain text on one line."""
    facts = [
        f"{in_language(LIVE[name], is_chinese=is_chinese)} {number:.3f}"
        for name, number in (("reward_of", rollout.reward), ("advantage", rollout.advantage))
        if number is not None
    ]
    texts = " -> ".join(repr(one_line(text)) for text in (rollout.prompt, rollout.response))
    return f"{in_language(LIVE['rollout'], is_chinese=is_chinese)} {', '.join(facts)}: {texts}"


def one_line(text: str) -> str:
    """Return a text on one line; what a terminal would obey is escaped."""
    cut = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
    return printable(cut).replace("\n", " ").replace("\t", " ")


def in_language(text: Text, *, is_chinese: bool) -> str:
    """Return a text in one of its languages."""
    return text.zh if is_chinese else text.en


def _new_bar(console: Console, left: str) -> RichProgress:
    return RichProgress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn(left),
        TimeRemainingColumn(),
        console=console,
        auto_refresh=False,
    )


def _either(new: float | None, old: float | None) -> float | None:
    return old if new is None else new


def _smoothed(new: float | None, old: float | None) -> float | None:
    return old if new is None else new if old is None else old + SMOOTHING * (new - old)


def _short(value: float) -> str:
    """Return a number with three digits or so: 950, 12.3k."""
    return f"{value:.0f}" if value < 1000 else f"{value / 1000:.1f}k"
