"""Texts of others, made safe to show."""

from __future__ import annotations

import pytest

from trinity.utils.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, 中文, é, 🙂", "plain, 中文, é, 🙂"),
        ("a\n\tb\u3000c\u00a0d", "a\n\tb\u3000c\u00a0d"),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("\x1b[31mred\x1b[0m\r", r"\x1b[31mred\x1b[0m\r"),
        ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
        ("user\u202etxt.exe\u2066", r"user\u202etxt.exe\u2066"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("line\u2028paragraph\u2029", r"line\u2028paragraph\u2029"),
        ("\ud800 alone", r"\ud800 alone"),
    ],
)
def test_what_is_not_seen_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
