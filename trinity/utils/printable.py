"""Texts of others, made safe to show: what is not seen is written out."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t\u200c\u200d"  # the last two join letters and pictures, and do nothing else


def printable(text: str) -> str:
    r"""Return a text in which control characters are escapes, as `\x1b`.

    So are marks that change the direction of what follows, characters without a width, and lone surrogates. Line
    breaks, tabs and spaces of all kinds stay.
    """
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else ascii(c)[1:-1] for c in text)


def _is_shown(character: str) -> bool:
    return character in _KEPT or character.isprintable() or unicodedata.category(character) == "Zs"
