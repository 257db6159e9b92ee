"""Learning curves: what a picture of them shows, and where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trinity.summary.curves import Points, StageCurves, thinned
from trinity.summary.words import CURVES, Text

WIDTH, HEIGHT = 600, 432
MOST_POINTS = 400
MOST_CHARACTERS = 60
Colour = tuple[int, int, int]
_LEFT, _TOP, _RIGHT, _BOTTOM = 72, 40, 18, 52
_COLOURS = ((31, 119, 180), (255, 127, 14), (44, 160, 44))
INK, _GRID = (60, 60, 60), (225, 225, 225)


@dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Attributes:
        label: what it is.
        points: step and value.
        has_dots: whether the points themselves are shown.
    """

    label: Text
    points: Points
    has_dots: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves over one axis of steps.

    Attributes:
        title: above them.
        curves: one at least has points, or the panel stays empty.
        is_log: the values are shown on a logarithmic axis; all of them are positive.
        bounds: of the values; None: as they come.
    """

    title: Text
    curves: Sequence[Curve]
    is_log: bool = False
    bounds: tuple[float, float] | None = None


def panel_of(name: str, curves: StageCurves) -> Panel:
    """Return the panel that shows the progress of a stage.

    Reward and evaluation, or the loss where there is neither.
    """
    if curves.reward or curves.accuracy:
        sampled = Curve(CURVES["reward"], curves.reward)
        evaluated = Curve(_same(curves.main_evaluation or ""), curves.accuracy, has_dots=True)
        values = [value for _, value in (*curves.reward, *curves.accuracy)]
        is_share = min(values) >= 0.0 and max(values) <= 1.0
        return Panel(_same(name), (sampled, evaluated), bounds=(0.0, 1.05) if is_share else None)
    is_log = bool(curves.loss) and all(value > 0 for _, value in curves.loss)
    return Panel(_same(name), (Curve(CURVES["loss"], curves.loss),), is_log=is_log)


def panels_of(name: str, curves: StageCurves) -> list[Panel]:
    """Return the panels of a job; none for no curve at all."""
    found = [panel_of(name, curves)] if curves.reward or curves.accuracy or curves.loss else []
    if curves.length:
        found.append(Panel(CURVES["length"], (Curve(CURVES["tokens"], curves.length),)))
    return found


def _same(name: str) -> Text:
    return Text(name, name)


class Canvas(Protocol):
    """What panels are drawn on; places are in pixels of the picture."""

    def line(self, places: Sequence[tuple[float, float]], colour: Colour, width: int) -> None:
        """Draw a line through places."""

    def dot(self, x: float, y: float, colour: Colour) -> None:
        """Draw a point."""

    def text(self, text: Text, x: float, y: float, anchor: str) -> None:
        """Write a text.

        Its place is that of its left, middle or right (`l`, `m`, `r`) and of its top or middle (`t`, `m`).
        """


def draw(panels: Sequence[Panel], canvas: Canvas) -> None:
    """Draw panels side by side, each of 600 x 432 pixels."""
    for number, panel in enumerate(panels):
        _Drawing(canvas, number * WIDTH, panel).draw()


class _Drawing:
    """Draws one panel.

    Args:
        canvas: on what.
        left: where the panel begins, in pixels of the picture.
        panel: what it shows.
    """

    def __init__(self, canvas: Canvas, left: int, panel: Panel) -> None:
        self._canvas, self._panel = canvas, panel
        self._x0, self._x1 = left + _LEFT, left + WIDTH - _RIGHT
        self._y0, self._y1 = HEIGHT - _BOTTOM, _TOP
        self._curves = [Curve(each.label, thinned(each.points, MOST_POINTS), each.has_dots) for each in panel.curves]
        points = [point for each in self._curves for point in each.points]
        self._steps = (min((step for step, _ in points), default=0), max((step for step, _ in points), default=1))
        values = [self._scaled(value) for _, value in points]
        low, high = panel.bounds or (min(values, default=0.0), max(values, default=1.0))
        margin = 0.0 if panel.bounds else (high - low) * 0.05 or 0.5
        self._values = (low - margin, high + margin)

    def draw(self) -> None:
        """Draw axes, curves and what they are."""
        self._canvas.text(self._panel.title, (self._x0 + self._x1) / 2, _TOP / 2, "mm")
        for value in ticks(*self._values):
            y = self._y(value)
            self._canvas.line([(self._x0, y), (self._x1, y)], _GRID, 1)
            label = f"{10**value:.3g}" if self._panel.is_log else f"{value:.4g}"
            self._canvas.text(_same(label), self._x0 - 6, y, "rm")
        for step in ticks(*self._steps, least=1.0):
            x = self._x(step)
            self._canvas.line([(x, self._y0), (x, self._y1)], _GRID, 1)
            self._canvas.text(_same(f"{step:g}"), x, self._y0 + 8, "mt")
        self._canvas.line([(self._x0, self._y1), (self._x0, self._y0), (self._x1, self._y0)], INK, 1)
        self._canvas.text(CURVES["step"], (self._x0 + self._x1) / 2, HEIGHT - 18, "mm")
        shown = [(curve, _COLOURS[number]) for number, curve in enumerate(self._curves) if curve.points]
        for curve, colour in shown:
            self._curve(curve, colour)
        for number, (curve, colour) in enumerate(shown):
            y = self._y1 + 14 + 18 * number
            self._canvas.line([(self._x0 + 10, y), (self._x0 + 34, y)], colour, 2)
            self._canvas.text(curve.label, self._x0 + 40, y, "lm")

    def _curve(self, curve: Curve, colour: Colour) -> None:
        places = [(self._x(step), self._y(self._scaled(value))) for step, value in curve.points]
        self._canvas.line(places, colour, 2)
        if curve.has_dots or len(places) == 1:
            for x, y in places:
                self._canvas.dot(x, y, colour)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._panel.is_log else value

    def _x(self, step: float) -> float:
        low, high = self._steps
        return (
            (self._x0 + self._x1) / 2 if high == low else self._x0 + (step - low) / (high - low) * (self._x1 - self._x0)
        )

    def _y(self, value: float) -> float:
        low, high = self._values
        return self._y0 + (value - low) / (high - low) * (self._y1 - self._y0)


def ticks(low: float, high: float, *, least: float = 0.0) -> list[float]:
    """Return at most seven round values from `low` to `high`.

    They are multiples of 1, 2 or 5 times a power of ten, which is `least` at least.
    """
    if high <= low:
        return [low]
    rough = max((high - low) / 6, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + i) * step, 12) for i in range(count)]
