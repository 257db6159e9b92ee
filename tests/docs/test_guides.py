"""The guides do what they say: their files run, their tables are what the tools write, their metrics exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.followed import follow
from tests.docs.pages import page
from tools.recipe_table import PAGES, tables, with_table

GUIDES = (
    "batch-sizes", "cluster", "coming-from", "evaluation", "faq", "glossary", "gsm8k", "install", "monitoring",
    "own-data", "quickstart", "recipes", "rewards", "sft-grpo-lora", "troubleshooting",
)  # fmt: skip


def test_the_recipes_are_what_the_estimate_computes() -> None:
    for path, table in zip(PAGES, tables(), strict=True):
        text = path.read_text(encoding="utf-8")
        assert with_table(text, table) == text, "python -m tools.recipe_table"
        assert table in text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sft_and_then_an_adapter(tmp_path: Path) -> None:
    said = follow(page("docs/sft-grpo-lora.md"), tmp_path)
    assert "training step 6" in said["trinity status checkpoints/two-stages/grpo"]
    assert (tmp_path / "checkpoints/two-stages/grpo/global_step_6/actor/lora_adapter/adapter_config.json").exists()
    assert (tmp_path / "sums-model" / "config.json").exists()
