"""Texts and their Chinese ones belong together, one to one, with the same names of keys and values."""

from __future__ import annotations

import re
from collections.abc import Mapping

CHINESE = re.compile(r"[一-鿿]")
NAMES = re.compile(r"\b[A-Za-z]\w*[_./]\w+(?:[_./]\w+)*|\b[A-Z][A-Z_]{2,}\b")


def assert_translated(texts: Mapping[str, str], translated: Mapping[str, str], file: str) -> None:
    """Hold that each text has its Chinese one in a file, which has no other.

    Args:
        texts: where each text stands, by the text.
        translated: the Chinese of each text.
        file: what a message calls the file.
    """
    missing = [f"{place}: {text}" for text, place in texts.items() if text not in translated]
    assert not missing, f"add the Chinese of these to {file}: {missing}"
    left = sorted(set(translated) - set(texts))
    assert not left, f"nothing has these texts of {file}: {left}"


def assert_same_names(translated: Mapping[str, str]) -> None:
    """Hold that names of keys and values are the same in both languages."""
    for english, chinese in translated.items():
        assert set(NAMES.findall(english)) - {"Trinity-RFT"} <= set(NAMES.findall(chinese)), english
