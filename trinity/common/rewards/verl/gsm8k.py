"""The score of a grade-school problem: the number after the last `####`."""

from __future__ import annotations

import re

TAIL_CHARS = 300
"""The end of a response in which the answer is looked for."""
_MARKED = re.compile(r"#### (-?[0-9.,]+)")


def answer_of(response: str) -> str | None:
    """Return the number after the last mark, without commas; None: no mark."""
    found = _MARKED.findall(response[-TAIL_CHARS:])
    return found[-1].replace(",", "") if found else None


def score(response: str, truth: str) -> float:
    """Return 1 if the answer is the truth to the letter, else 0.

    So `72.` is not `72`, and a mark that is not followed by one space and a number is none.
    """
    answer = answer_of(response)
    return float(answer is not None and answer == truth)
