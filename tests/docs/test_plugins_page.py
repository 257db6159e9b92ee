"""The smallest plugins of the page run, all in one run of two steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT, Page
from tests.e2e.tiny_run import TinyRun
from tests.trees import merged

PAGE = Page(ROOT / "docs/plugins.md")
KINDS = [title for level, title in PAGE.headings if level == 2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The finished run."""
    folder = tmp_path_factory.mktemp("plugins")
    run = TinyRun(folder)
    (folder / "plugins").mkdir()
    for number, code in enumerate(PAGE.code("python")):
        (folder / "plugins" / f"part_{number}.py").write_text(code)
    for part in PAGE.code("yaml"):
        run.tree = merged(run.tree, yaml.safe_load(part))
    end = run.finish("--plugin-dir", "plugins")
    assert end.status == 0, end.output
    return run


def test_every_kind_of_the_registries_table_has_its_plugin() -> None:
    table = Page(ROOT / "docs/workflows.md").text
    registries = set(re.findall(r"`trinity\.[\w.]*\.([A-Z_]{5,})`", table))
    assert registries == {name for code in PAGE.code("python") for name in re.findall(r"@([A-Z_]+)\.register", code)}
    assert len(KINDS) == len(PAGE.code("python")) == len(PAGE.code("yaml"))
    assert PAGE.twin.blocks == PAGE.blocks


@pytest.mark.runs("docs/plugins.md")
@pytest.mark.parametrize(
    ("actor", "name", "value"),
    [
        ("explorer", "experience_pipeline/count_tokens/tokens", None),
        ("explorer", "experience_pipeline/group_advantages/size/mean", 2.0),
        ("trainer", "actor/plain_loss", None),
        ("trainer", "actor/kl_loss", None),
        ("trainer", "sample/counted", 4.0),
        ("explorer", "experience_pipeline/reward_model/score/mean", None),
    ],
)
def test_the_plugins_are_used(run: TinyRun, actor: str, name: str, value: float | None) -> None:
    lines = run.lines(actor)
    assert len(lines) == 2 and all(name in line for line in lines), sorted(lines[0])
    assert value is None or all(line[name] == value for line in lines)


def test_the_monitor_writes_its_file(run: TinyRun) -> None:
    written = [Path(file).read_text() for file in run.folder.glob("*.txt")]
    assert written and all(re.match(r"\d+ \d+\n", text) for text in written)
