"""The snippet in CONTRIBUTING.md runs."""

from __future__ import annotations

import importlib.util
import logging
import re
from pathlib import Path

import pytest

from trinity.monitor import MONITOR, Monitor

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.runs("CONTRIBUTING.md", "python")
def test_the_monitor_plugin_of_the_page_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(snippets) == 1
    (tmp_path / "plugin.py").write_text(snippets[0])
    spec = importlib.util.spec_from_file_location("contributing_plugin", tmp_path / "plugin.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    try:
        with caplog.at_level(logging.INFO):
            monitor = Monitor(tmp_path, project="p", name="n", actor="trainer", monitor_type="standard_log")
            monitor.log({"x": 1.0}, 3)
            monitor.close()
    finally:
        MONITOR.contents.pop("standard_log")
        MONITOR.classes.pop("standard_log")
    assert [record.getMessage() for record in caplog.records if record.name == "n"] == ["trainer 3 {'x': 1.0}"]
