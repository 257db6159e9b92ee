"""Learning curves as a PNG, drawn with Pillow, and as SVG.

A PNG is drawn at twice its size and made smaller, which smooths the lines. It takes a twentieth of a second, where
matplotlib alone takes more than half a second to be imported, at the end of every run. The texts of an SVG are in the
fonts of its reader, which has those of both languages.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from trinity.summary.fonts import Fonts
from trinity.summary.picture import HEIGHT, INK, MOST_CHARACTERS, WIDTH, Colour, Panel, draw
from trinity.summary.words import CURVES, Text

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

_SCALE = 2
_SIZE, _RADIUS = 13, 3
_ANCHORS = {"l": "start", "m": "middle", "r": "end"}
_BASELINES = {"t": "hanging", "m": "central"}


def drawn(panels: Sequence[Panel], *, is_chinese: bool = False) -> bytes:
    """Return a PNG of panels side by side.

    It is in English also where Chinese is asked for and this machine has no font for it.
    """
    from PIL import Image, ImageDraw

    size = (WIDTH * max(len(panels), 1) * _SCALE, HEIGHT * _SCALE)
    image = Image.new("RGB", size, "white")
    fonts = Fonts(_SIZE * _SCALE, words=[text.zh for text in CURVES.values()])
    draw(panels, _Pixels(ImageDraw.Draw(image), fonts, is_chinese=is_chinese and fonts.has_chinese))
    target = io.BytesIO()
    image.resize((size[0] // _SCALE, size[1] // _SCALE), Image.Resampling.BOX).save(target, "PNG", optimize=True)
    return target.getvalue()


class _Pixels:
    def __init__(self, drawing: ImageDraw, fonts: Fonts, *, is_chinese: bool) -> None:
        self._draw, self._fonts, self._is_chinese = drawing, fonts, is_chinese

    def line(self, places: Sequence[tuple[float, float]], colour: Colour, width: int) -> None:
        scaled = [(x * _SCALE, y * _SCALE) for x, y in places]
        self._draw.line(scaled, fill=colour, width=width * _SCALE, joint="curve")

    def dot(self, x: float, y: float, colour: Colour) -> None:
        box = [(x - _RADIUS) * _SCALE, (y - _RADIUS) * _SCALE, (x + _RADIUS) * _SCALE, (y + _RADIUS) * _SCALE]
        self._draw.ellipse(box, fill=colour)

    def text(self, text: Text, x: float, y: float, anchor: str) -> None:
        font, shown = self._fonts.fit((text.zh if self._is_chinese else text.en)[:MOST_CHARACTERS])
        self._draw.text((x * _SCALE, y * _SCALE), shown, fill=INK, font=font, anchor=anchor)


def svg(panels: Sequence[Panel], *, label: str) -> str:
    """Return an SVG of panels side by side, for a page.

    Texts that differ are there in both languages, with their `lang`.

    Args:
        panels: one at least.
        label: id of what says on the page what it is.
    """
    canvas = _Vectors()
    draw(panels, canvas)
    width = WIDTH * len(panels)
    return (
        f'<svg role="img" aria-labelledby="{label}" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
        f'font-size="{_SIZE}">\n{"".join(canvas.parts)}</svg>\n'
    )


class _Vectors:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def line(self, places: Sequence[tuple[float, float]], colour: Colour, width: int) -> None:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{_hex(colour)}" stroke-width="{width}"/>\n')

    def dot(self, x: float, y: float, colour: Colour) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="{_hex(colour)}"/>\n')

    def text(self, text: Text, x: float, y: float, anchor: str) -> None:
        place = (
            f'x="{x:.1f}" y="{y:.1f}" text-anchor="{_ANCHORS[anchor[0]]}" '
            f'dominant-baseline="{_BASELINES[anchor[1]]}" fill="{_hex(INK)}"'
        )
        known = [("", text.en)] if text.en == text.zh else [(' lang="en"', text.en), (' lang="zh"', text.zh)]
        self.parts += [f"<text {place}{lang}>{escape(words[:MOST_CHARACTERS])}</text>\n" for lang, words in known]


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)
