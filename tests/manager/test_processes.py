"""Runs that the studio starts: where what they print goes, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prepared import DEADLINE_S
from trinity.manager.studio.processes import ended_badly, last_lines, start_run


def test_a_run_that_fails_is_told_once_with_what_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not given the secret path of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMLIT_SERVER_BASE_URL_PATH", "secret-of-the-page")
    (tmp_path / "run.yaml").write_text("name: ${oc.env:STREAMLIT_SERVER_BASE_URL_PATH}\n")
    started = start_run(tmp_path / "run.yaml")
    assert started.process.wait(DEADLINE_S) == 2 and started.output == tmp_path / "run.out"
    assert ended_badly() == [started] and ended_badly() == []
    said = last_lines(started.output, 100)
    assert "STREAMLIT_SERVER_BASE_URL_PATH" in said and "secret-of-the-page" not in said


def test_the_last_lines_of_a_file_are_read_without_the_others(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert last_lines(file, 2) == ""
    file.write_bytes(b"x" * 10_000 + b"\nfirst\n\xff second\n")
    assert last_lines(file, 2) == "first\n\ufffd second"
