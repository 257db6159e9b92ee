"""What `trinity validate` says of a disk on which two checkpoints may not find room."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.test_validate import _model, app, runner
from tests.common.config.conftest import MINIMAL


def test_a_disk_too_small_for_two_checkpoints_is_told_with_sizes_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B84."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(MINIMAL)
    model = _model(tmp_path / "model")
    arguments = ["validate", "-c", "run.yaml", "--set", f"model.model_path={model}"]
    assert "two checkpoints may take" not in runner.invoke(app, arguments).output
    with open(model / "more.safetensors", "wb") as file:  # a file of holes
        file.truncate(shutil.disk_usage(tmp_path).free // 8)
    assert "warning[W3702]" in runner.invoke(app, arguments).output
    line = next(line for line in runner.invoke(app, arguments).output.splitlines() if "two checkpoints" in line)
    needed, free = re.findall(r"[1-9]\d*\.?\d* (?:TiB|GiB|MiB|KiB)", line)
    assert needed != free
