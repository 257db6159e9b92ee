"""The page of the model families is what the table says."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT
from tools.family_table import TEXTS, page


@pytest.mark.parametrize("language", TEXTS)
def test_the_page_is_made_from_the_table(language: str) -> None:
    written = (ROOT / TEXTS[language]["page"]).read_text(encoding="utf-8")
    assert written == page(language), "run python tools/family_table.py"


def test_every_reason_is_translated() -> None:
    assert all(reason in page("zh") for reason in TEXTS["zh"]["reasons"].values())
