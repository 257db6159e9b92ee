"""The pictures of the guides: their numbers are those of the page, and a curve is drawn of a run's own metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.docs.pages import page
from tools import guide_pictures
from tools.guide_pictures import batches, curve, main

PNG = b"\x89PNG"


def test_the_picture_of_batches_shows_numbers_that_fit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    text = guide_pictures.pyplot.Axes.text
    monkeypatch.setattr(
        guide_pictures.pyplot.Axes, "text", lambda axes, x, y, s, **how: said.append(s) or text(axes, x, y, s, **how)
    )
    assert batches(tmp_path / "batches.png").read_bytes().startswith(PNG)
    shown = "\n".join(said)
    for key, number in (("buffer.batch_size", 4), ("algorithm.repeat_times", 4), ("buffer.train_batch_size", 8)):
        assert f"{key} = {number}" in shown and f"`{key}`" in page("docs/batch-sizes.md").text
    assert "16 rollouts" in shown and shown.count("task ") == 4 and "step 2" in shown


def test_the_curve_is_that_of_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "checkpoints" / "quickstart" / "addition" / "rft"
    job.mkdir(parents=True)
    values = {0: {"eval/addition_test/accuracy/mean@1": 0.25}, 1: {"rollout/reward/mean": 0.5}}
    lines = [json.dumps({"actor": "explorer", "step": step, **named}) for step, named in values.items()]
    (job / "metrics.jsonl").write_text("\n".join(lines))
    drawn: list[Figure] = []
    monkeypatch.setattr(guide_pictures.pyplot, "close", drawn.append)
    assert curve(tmp_path, tmp_path / "rft.png").read_bytes().startswith(PNG)
    reward, accuracy = drawn[0].axes[0].lines
    assert reward.get_xydata().tolist() == [[1.0, 0.5]] and accuracy.get_xydata().tolist() == [[0.0, 0.25]]
    monkeypatch.undo()
    guide_pictures.pyplot.close("all")


def test_other_words_show_how_the_tool_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 2
    assert "guide_pictures batches" in capsys.readouterr().err
