"""The quickstart folder: complete, valid, and never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trinity.common.errors import ConfigError
from trinity.quickstart.folder import prepare
from trinity.quickstart.template import render


def test_the_folder_holds_what_the_run_reads(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "quickstart", seed=3)
    config = yaml.safe_load(folder.config.read_text())
    taskset = config["stages"][1]["buffer"]["explorer_input"]["taskset"]
    assert folder.is_new
    assert config["seed"] == 3
    assert Path(config["model"]["model_path"], "model.safetensors").is_file()
    assert Path(taskset["path"]).is_file()
    assert Path(config["stages"][0]["buffer"]["trainer_input"]["experience_buffer"]["path"]).is_file()
    assert Path(config["checkpoint_root_dir"]) == tmp_path / "quickstart" / "checkpoints"


def test_paths_are_absolute_wherever_the_command_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load(render(Path("sub"), seed=1))
    assert config["model"]["model_path"] == str(tmp_path / "sub" / "model")


@pytest.mark.parametrize("name", ["with space", "quote'd", "a: b # c", "ünïcode"])
def test_odd_folder_names_survive_yaml(tmp_path: Path, name: str) -> None:
    config = yaml.safe_load(render(tmp_path / name, seed=1))
    assert config["model"]["model_path"] == str(tmp_path / name / "model")


def test_files_that_were_edited_are_kept(tmp_path: Path) -> None:
    folder = prepare(tmp_path, seed=1)
    edited = folder.config.read_text().replace("total_steps: 40", "total_steps: 80")
    folder.config.write_text(edited)
    (tmp_path / "data" / "train.jsonl").write_text('{"question": "01+01", "answer": "#### 002"}\n')
    again = prepare(tmp_path, seed=1)
    assert not again.is_new
    assert folder.config.read_text() == edited
    assert (tmp_path / "data" / "train.jsonl").read_text().count("\n") == 1


def test_another_seed_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path, seed=1)
    with pytest.raises(ConfigError, match=r"\[E1091\] .* was written for --seed 1, got --seed 2; choose another --dir"):
        prepare(tmp_path, seed=2)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"\[E1090\] --dir must be a folder, got the file"):
        prepare(tmp_path / "file", seed=1)
