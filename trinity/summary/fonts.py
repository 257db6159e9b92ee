"""A font of this machine that has Chinese characters, for pictures."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDERS = (
    "~/.local/share/fonts", "~/.fonts", "~/Library/Fonts", "/usr/local/share/fonts", "/usr/share/fonts",
    "/Library/Fonts", "/System/Library/Fonts", "C:/Windows/Fonts",
)  # fmt: skip
# Of files, the best first: a font for a screen before one for a book.
_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"notosans(cjk|sc|hans)|sourcehansans|pingfang|msyh|wqy|wenquanyi|hiragino sans gb|harmonyos.*sc",
        r"droidsansfallback|stheiti|simhei|deng|lxgw|fandolhei|arial unicode",
        r"notoserif(cjk|sc)|sourcehanserif|simsun|songti|uming|ukai|fandolsong|unifont",
    )
)
_KINDS = (".ttf", ".ttc", ".otf", ".otc")
_HEAVY = re.compile(r"bold|black|heavy|thin|light", re.IGNORECASE)
_NO_CHARACTER = "\U0010ffff"  # shown as what a font has for those that it lacks
_MOST_FACES = 10  # in one file: languages that write the same character in other ways


class Fonts:
    """The fonts of a picture, each for the texts that it can show.

    Args:
        size: in pixels.
        words: what is to be shown in Chinese.

    Attributes:
        has_chinese: whether all of the words can be.
    """

    def __init__(self, size: int, *, words: Iterable[str]) -> None:
        from PIL import ImageFont

        self._plain: Any = ImageFont.load_default(size)
        self._wide: Any = None
        needed = "".join(words)
        for path in found_fonts():
            font = _font(path, size)
            if font is not None and not missing(font, needed):
                self._wide = font
                break
        self.has_chinese = self._wide is not None

    def fit(self, text: str) -> tuple[Any, str]:
        """Return a font, and the text with `?` for what no font has."""
        lacking = missing(self._plain, text)
        if not lacking:
            return self._plain, text
        font = self._plain if self._wide is None else self._wide
        lacking = missing(font, text)
        return font, "".join("?" if character in lacking else character for character in text)


def found_fonts() -> list[Path]:
    """Return the files whose names are those of Chinese fonts, the best first."""
    return list(_found(tuple(os.path.expanduser(folder) for folder in FOLDERS)))


@functools.cache
def _found(folders: tuple[str, ...]) -> tuple[Path, ...]:
    ranked = [(rank, path) for path in _files(folders) if (rank := _rank(path.name)) is not None]
    return tuple(path for _, path in sorted(ranked))


def _files(folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        for parent, _, names in os.walk(folder):
            yield from (Path(parent, name) for name in names if name.lower().endswith(_KINDS))


def _rank(name: str) -> tuple[int, bool] | None:
    joined = name.replace("-", "").replace("_", "")
    kind = next((number for number, names in enumerate(_NAMES) if names.search(name) or names.search(joined)), None)
    return None if kind is None else (kind, bool(_HEAVY.search(name)))


def _font(path: Path, size: int) -> Any:
    """Return the font of a file: of several that for simplified Chinese.

    None: it cannot be read.
    """
    from PIL import ImageFont

    faces = []
    for number in range(_MOST_FACES if path.suffix.lower() in (".ttc", ".otc") else 1):
        try:
            faces.append(ImageFont.truetype(str(path), size, index=number))
        except OSError:
            break
    simplified = [face for face in faces if re.search(r"\bSC\b", face.getname()[0] or "")]
    return next(iter(simplified or faces), None)


def missing(font: Any, text: str) -> set[str]:
    """Return the characters of a text that a font lacks."""
    lacking = _shape(font, _NO_CHARACTER)
    return {each for each in text if not each.isspace() and _shape(font, each) in (lacking, b"")}


def _shape(font: Any, character: str) -> bytes:
    mask = font.getmask(character)
    return bytes(mask) if any(mask) else b""
