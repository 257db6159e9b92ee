"""The table of modes, over a few steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from transformers import AutoConfig

Scripts = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the imitation is done once."""
    return tmp_path_factory.mktemp("modes")


def write_config(modes: ModuleType, folder: Path, size: str) -> Path:
    return Path(modes.write_config(folder, size=size, seed=42, steps=3, imitation=2))


@pytest.mark.nightly
def test_a_table_has_a_row_a_mode(
    script: Scripts, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--steps", "2", "--imitation", "2", "--folder", str(folder)]
    monkeypatch.setattr(sys, "argv", ["modes.py", *few, "--modes", "2 torch engines", "1 torch engine"])
    status = script("modes").main()
    printed = capsys.readouterr()
    assert status == 0, printed.err
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in printed.out.splitlines()]
    assert [row[0] for row in rows] == ["mode", "---", "2 torch engines", "1 torch engine"]
    assert rows[2][-1] == "1.00" and all(float(cell.replace(",", "")) > 0 for row in rows[2:] for cell in row[1:])


def test_a_larger_model_has_more_layers(script: Scripts, folder: Path) -> None:
    section = yaml.safe_load(write_config(script("modes"), folder, "larger").read_text())["model"]
    assert AutoConfig.from_pretrained(section["model_path"]).num_hidden_layers == 8


def test_a_mode_that_fails_is_told(script: Scripts, folder: Path) -> None:
    modes = script("modes")
    broken = write_config(modes, folder, "quickstart")
    broken.write_text(broken.read_text().replace("batch_size: 32", "batch_size: 0"))
    told = modes.run(broken, "1 torch engine", modes.Measured(), number=9)
    assert told.startswith("1 torch engine: status 2") and "buffer.batch_size" in told
