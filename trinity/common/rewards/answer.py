"""Find the final answer in a text, and compare without computer algebra.

Everything here is linear in the length of the text and safe on whatever a model writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trinity.common.rewards.arithmetic import ArithmeticRefused, evaluate

TAIL_CHARS = 1000
MAX_NUMBER_CHARS = 64
# A marked answer this long is no answer, unless the truth is as long; it is not worth a computer algebra system.
MAX_ANSWER_CHARS = 1000
# Relative tolerance between numbers of which one is a decimal; math-verify rounds to 6 digits as well.
TOLERANCE = Fraction(1, 10**6)

_WHOLE = r"[0-9]{1,3}(?:,[0-9]{3})+"
_EXPONENT = r"[eE][+-]?[0-9]{1,3}"
_PLAIN = re.compile(
    rf"([+-]?)\$?([+-]?)((?:{_WHOLE}|[0-9]+)?(?:\.[0-9]*)?(?:/[0-9]+|{_EXPONENT})?)",
    re.ASCII,
)
_ANY_NUMBER = re.compile(
    rf"(?:(?<![0-9).])[+-])?(?:{_WHOLE}(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:/[0-9]+|{_EXPONENT}(?![0-9A-Za-z]|\.[0-9]))?|\.[0-9]+",
    re.ASCII,
)
# Signs of mathematics that is more than a number among words. A marked answer has no punctuation, so more signs count.
_MATHEMATICAL_ANSWER = re.compile(r"[\\^{}|!%]|[^\x00-\x7f]")
_MATHEMATICAL_PROSE = re.compile(r"[\\^{}]")
_OPEN, _CLOSE, _BOXED = "<answer>", "</answer>", "\\boxed{"


@dataclass(frozen=True)
class FinalAnswer:
    r"""A final answer.

    Attributes:
        text: the answer, stripped.
        is_marked: whether the text marked it (`<answer>`, `\boxed{}`, `####`); otherwise it is the text's tail.
    """

    text: str
    is_marked: bool


def _last_boxed(text: str, end: int | None = None) -> tuple[int, str] | None:
    end = len(text) if end is None else end
    start = text.rfind(_BOXED, 0, end)
    if start < 0:
        return None
    depth = 1
    for position in range(start + len(_BOXED), end):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return start, text[start + len(_BOXED) : position]
    return None


def _last_hash(text: str) -> tuple[int, str] | None:
    start = text.rfind("#")
    if start < 0:
        return None
    line = text[start + 1 :].lstrip().split("\n", 1)[0].strip()
    is_heading = line[:1].isalpha() and " " in line
    return None if is_heading else (start, line)


def final_answer(text: str) -> FinalAnswer:
    r"""Return the final answer of a response.

    It is what the last `<answer>...</answer>` holds; else the last `\boxed{...}` or the line after the last `#`,
    whichever comes later; else the tail of the text. A Markdown heading is not an answer.
    """
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    if start >= 0:
        inner = text[start + len(_OPEN) : end]
        boxed = _last_boxed(inner)
        return FinalAnswer((boxed[1] if boxed else inner).strip(), is_marked=True)
    found = [mark for mark in (_last_boxed(text), _last_hash(text)) if mark is not None]
    if found:
        return FinalAnswer(max(found)[1].strip(), is_marked=True)
    return FinalAnswer(text[-TAIL_CHARS:].strip(), is_marked=False)


def boxed_answers(text: str) -> list[str]:
    r"""Return what each `\boxed{}` holds, in order, none twice."""
    found, end = list[str](), len(text)
    while (last := _last_boxed(text, end)) is not None:
        end = last[0]
        found.append(last[1].strip())
    return list(dict.fromkeys(reversed(found)))


def true_answer(truth: Any) -> str:
    r"""Return the answer in the truth of a task.

    This is the text after the last `####` (GSM8K), the content of `\boxed{}`, or the whole truth.
    """
    text = str(truth)
    _, mark, after = text.rpartition("####")
    if mark:
        return after.strip()
    boxed = _last_boxed(text)
    return (boxed[1] if boxed else text).strip()


def plain_number(text: str) -> Fraction | None:
    """Return the value of a text that is one number; `None` if it is not.

    Numbers are written like `-1,234.50`, `$18`, `3/4`, `1e3` or `0105`.
    """
    bare = text.strip().removeprefix("\\$").rstrip(". \t\n")
    if len(bare) > 2 and bare[0] == bare[-1] == "$":
        bare = bare[1:-1].strip()
    match = _PLAIN.fullmatch(bare) if 0 < len(bare) <= MAX_NUMBER_CHARS else None
    if match is None or not any(char.isdigit() for char in match[3].split("/")[0]):
        return None
    try:
        value = Fraction(match[3].replace(",", "").replace("./", "/").rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None
    return -value if (match[1] + match[2]).count("-") == 1 else value


def last_number(text: str) -> Fraction | None:
    """Return the last number in the tail of a text; `None` without any."""
    written = _ANY_NUMBER.findall(text[-TAIL_CHARS:])
    return plain_number(written[-1]) if written else None


def same_number(left: Fraction, right: Fraction) -> bool:
    """Return whether two values are equal.

    Integers are compared exactly, other values to a relative 1e-6.
    """
    if left == right:
        return True
    if left.denominator == right.denominator == 1:
        return False
    return abs(left - right) <= TOLERANCE * max(abs(left), abs(right))


def compare_cheaply(answer: FinalAnswer, truth: str) -> bool | None:
    """Return whether `answer` equals `truth`, without computer algebra.

    `None` means that only computer algebra can tell. Where the truth is a number, a marked answer may be arithmetic,
    and the last number of plain prose is compared.
    """
    if not answer.text:
        return False
    if answer.text == truth:
        return True
    if len(answer.text) > max(MAX_ANSWER_CHARS, 2 * len(truth)):
        return False
    target = plain_number(truth)
    if target is None:
        return None
    value = plain_number(answer.text)
    if value is None and answer.is_marked:
        try:
            value = evaluate(answer.text)
        except ArithmeticRefused:
            value = None
    if value is None:
        mathematical = _MATHEMATICAL_ANSWER if answer.is_marked else _MATHEMATICAL_PROSE
        if mathematical.search(answer.text):
            return None
        value = last_number(answer.text)
    return value is not None and same_number(value, target)
