"""The page of the codes is what the source says, and every code has its reason."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT
from tools.code_table import CHINESE, TEXTS, page
from trinity.common.codes import reason_of
from trinity.explain.code_messages import messages


@pytest.mark.parametrize("language", TEXTS)
def test_the_page_is_made_from_the_source(language: str) -> None:
    written = (ROOT / TEXTS[language]["page"]).read_text(encoding="utf-8")
    assert written == page(language), "run python -m tools.code_table"


def test_every_code_of_the_source_says_something_and_has_a_translated_reason() -> None:
    files = [file for file in (ROOT / "trinity").rglob("*.py") if file.name != "codes.py"]
    used = {code for file in files for code in re.findall(r'"([EW]\d{4})"', file.read_text(encoding="utf-8"))}
    assert used == set(messages())
    assert not [code for code, said in messages().items() if not said]
    assert {reason_of(code) for code in used} <= CHINESE.keys()


def test_the_codes_with_a_reason_of_their_own_exist() -> None:
    text = (ROOT / "trinity/common/codes.py").read_text(encoding="utf-8")
    assert set(re.findall(r"\b[EW]\d{4}\b", text)) <= set(messages())


def test_a_warning_without_a_reason_is_refused() -> None:
    with pytest.raises(KeyError, match="states its reason"):
        reason_of("W1999")
