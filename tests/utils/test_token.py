"""Who has shown a token."""

from __future__ import annotations

import pytest

from trinity.utils.token import is_token


@pytest.mark.parametrize(
    ("shown", "token", "is_right"),
    [
        ("key", "key", True),
        ("k\N{LATIN SMALL LETTER E WITH ACUTE}y", "k\N{LATIN SMALL LETTER E WITH ACUTE}y", True),
        ("Key", "key", False),
        ("ke", "key", False),
        ("", "key", False),
        ("", "", False),
        ("  ", "  ", False),
    ],
)
def test_an_empty_token_is_nobodys(shown: str, token: str, is_right: bool) -> None:
    assert is_token(shown, token) is is_right
