"""A run leaves nothing on the machine, however it ends; `python -m tools.leftovers` tries every mode and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.leftovers import ENDS, measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("mode", "end"), [("local", "term"), pytest.param("vllm", "normal", marks=pytest.mark.nightly)]
)
def test_nothing_is_left(tmp_path: Path, mode: str, end: str) -> None:
    if mode.startswith("vllm"):
        pytest.importorskip("vllm")
    status, left, output = measure(mode, end, tmp_path)
    assert (left, status in ENDS[end][1]) == ([], True), output[-3000:]
    assert "resource_tracker" not in output and "Exception ignored" not in output, output[-3000:]
    assert output.splitlines()[-1].startswith(("done: ", "resume with: ")), "nobody speaks after the last line"
