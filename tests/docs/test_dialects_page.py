"""The page of dialects is what the table says."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT
from tools.dialect_table import TEXTS, page


@pytest.mark.parametrize("language", TEXTS)
def test_the_page_is_made_from_the_table(language: str) -> None:
    written = (ROOT / TEXTS[language]["page"]).read_text(encoding="utf-8")
    assert written == page(language), "run python -m tools.dialect_table"
    assert all(f"`{name}`" in written for name in ("data.train_files", "actor_rollout_ref.rollout.n", "af_output_dir"))
