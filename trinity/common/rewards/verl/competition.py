r"""The score of a competition problem: what the last `\boxed{}` holds.

Answers are compared as texts in one spelling, that of Hendrycks et al. 2021 (arXiv:2103.03874): LaTeX that does not
change the value is removed.
"""

from __future__ import annotations

import re

_SPELLINGS = (
    (r"\n", ""),
    (r"\\!", ""),
    (r"\\\\", r"\\"),
    (r"\\[td]frac", r"\\frac"),
    (r"\\left|\\right", ""),
    (r"\^\{\\circ\}|\^\\circ", ""),
    (r"\\\$", ""),
)
_SIZES = ((r"\\?%", ""), (r" \.", " 0."), (r"\{\.", "{0."))
_UNIT = r"\text{ "


def last_boxed(text: str) -> str | None:
    r"""Return the last `\boxed{...}`, `\boxed ...` or `\fbox{...}`; None: none.

    One that is not closed is none.
    """
    start = max(text.rfind(r"\boxed"), -1)
    if r"\boxed " in text:
        return r"\boxed " + text.rpartition(r"\boxed ")[2].partition("$")[0]
    if start < 0:
        start = text.rfind(r"\fbox")
    if start < 0:
        return None
    depth = 0
    for place in range(start, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return text[start : place + 1]
    return None


def content_of(boxed: str) -> str | None:
    r"""Return what a `\boxed` holds; None for another command."""
    if boxed.startswith(r"\boxed "):
        return boxed[len(r"\boxed ") :]
    is_box = boxed.startswith(r"\boxed{") and boxed.endswith("}")
    return boxed[len(r"\boxed{") : -1] if is_box else None


def plain(text: str) -> str:
    """Return an answer in the spelling in which answers are compared."""
    for pattern, into in _SPELLINGS:
        text = re.sub(pattern, into, text)
    before, unit, after = text.rpartition(_UNIT)
    text = before if unit and _UNIT not in before else text
    del after
    for pattern, into in _SIZES:
        text = re.sub(pattern, into, text)
    if not text:
        return text
    text = f"0{text}" if text.startswith(".") else text
    sides = text.split("=")
    text = sides[1] if len(sides) == 2 and len(sides[0]) <= 2 else text
    text = re.sub(r"\\sqrt(?!\{)(.)", r"\\sqrt{\1}", text).replace(" ", "")
    text = _braced(text)
    text = r"\frac{1}{2}" if text == "0.5" else text
    of_integers = re.fullmatch(r"(-?[0-9]+)/(-?[0-9]+)", text)
    return text if of_integers is None else rf"\frac{{{_integer(of_integers[1])}}}{{{_integer(of_integers[2])}}}"


def _integer(text: str) -> str:
    """Return an integer as Python writes it; it may be too long for `int`."""
    digits = text.lstrip("-").lstrip("0")
    return f"-{digits}" if digits and text.startswith("-") else digits or "0"


def _braced(text: str) -> str:
    r"""Write `\frac12` and `\frac1{2}` as `\frac{1}{2}`."""
    text = re.sub(r"\\frac([^{\\])([^{\\])", r"\\frac{\1}{\2}", text)
    return re.sub(r"\\frac([^{\\])(?=\{)", r"\\frac{\1}", text)


def score(response: str, truth: str) -> float:
    r"""Return 1 if the last `\boxed{}` holds the truth, else 0."""
    boxed = last_boxed(response)
    answer = None if boxed is None else content_of(boxed)
    return float(answer is not None and plain(answer) == plain(truth))
