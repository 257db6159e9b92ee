"""The core that a newcomer reads stays small, and one training step stays on two screens."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.pages import ROOT, page

PAGES = ("docs/architecture.md", "docs/architecture.zh.md")
MAX_LINES = 20_000
MAX_STEP_LINES = 100  # of either half of a training step: a screen or two
ROW = re.compile(r"^\|[^|]*\| `(trinity/[\w/]+\.py)` \| ([^|]+) \|$", flags=re.MULTILINE)
STEP = re.compile(r"`(trinity/[\w/]+\.py)`[^`]*`(\w+)`[^`]*`(\w+)`")
MUST = (
    "trinity/explorer/explorer.py",
    "trinity/trainer/trainer.py",
    "trinity/trainer/verl/worker.py",
    "trinity/buffer/store/store.py",
    "trinity/synchronizer/base.py",
    "trinity/engine/torch/engine.py",
    "trinity/common/experience.py",
    *(f"trinity/algorithm/policy_loss_fn/{name}.py" for name in ("ppo", "sft", "dpo")),
)


def core(name: str) -> list[str]:
    """Return the files of the list, in the order of the page."""
    return [path for path, _ in ROW.findall(page(name).prose)]


@pytest.mark.parametrize("name", PAGES)
def test_the_core_is_at_most_20000_lines(name: str) -> None:
    files = core(name)
    assert len(set(files)) == len(files) and set(MUST) < set(files)
    assert sum(len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in files) <= MAX_LINES


@pytest.mark.parametrize(("name", "ends"), [(PAGES[0], "."), (PAGES[1], "。")])
def test_each_file_of_the_core_has_one_sentence(name: str, ends: str) -> None:
    for path, sentence in ROW.findall(page(name).prose):
        assert sentence.endswith(ends) and sentence.count(ends) == 1, path


def test_both_languages_list_the_same_files_in_the_same_order() -> None:
    assert core(PAGES[0]) == core(PAGES[1])


@pytest.mark.parametrize("name", PAGES)
def test_one_training_step_is_on_two_screens(name: str) -> None:
    halves = [found for found in STEP.findall(page(name).prose) if "trainer/verl" in found[0]]
    assert len(halves) == 2 and {path for path, _, _ in halves} < set(core(name))
    for path, first, last in halves:
        nodes = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        lines = {node.name: (node.lineno, node.end_lineno or 0) for node in nodes if isinstance(node, ast.FunctionDef)}
        assert 0 < lines[last][1] - lines[first][0] < MAX_STEP_LINES, path
