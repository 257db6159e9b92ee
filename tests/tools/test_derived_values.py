"""The comparison of what configuration files resolve to: it finds what another value of one key changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.derived_values import changed, compare, concrete, edited, examined, main, tried

GRAD_CLIP = ("trainer", "grad_clip")
DETAILED = "trainer.trainer_config.actor_rollout_ref.actor.grad_clip"


def _resolved(folder: Path, value: float) -> dict[str, object]:
    file = folder / "run.yaml"
    file.write_text(json.dumps(edited("grpo", GRAD_CLIP, value)))
    return examined(file, ())


def test_a_key_is_compared_with_all_that_follows_from_it(tmp_path: Path) -> None:
    before, after = _resolved(tmp_path, 1.0), _resolved(tmp_path, 0.5)
    assert compare({"f": before}, {"f": before}) == []
    lines = compare({"f": before}, {"f": after})
    assert f"f: None: values: {DETAILED}: was 1.0, is 0.5" in lines
    assert changed(before, after)["None"]["values"] == {DETAILED: 0.5, "trainer.grad_clip": 0.5}


def test_the_exit_status_says_whether_two_files_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).write_text(json.dumps({"f": {"k": value}}))
    assert main([str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "f: k: was 1, is 2" in capsys.readouterr().out


def test_an_option_shows_how_the_tool_is_used_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--help"]) == 2
    assert "compare two files" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_every_word_of_a_key_is_tried_also_in_lists() -> None:
    path = concrete(("explorer", "auxiliary_models", "*", "engine_type"))
    assert path == ("explorer", "auxiliary_models", 0, "engine_type")
    assert {"torch", "sglang"} <= set(tried(path))
    assert edited("grpo", path, "torch")["explorer"] == {"auxiliary_models": [{"engine_type": "torch"}]}
