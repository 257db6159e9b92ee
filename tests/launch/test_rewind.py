"""`resume_mode`: going back to an older checkpoint, and beginning again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.tiny_run import PLAIN
from trinity.common.checkpoint import CheckpointStore
from trinity.common.errors import CheckpointError
from trinity.launch.rewind import rewound
from trinity.launch.run import RunOptions, plan_run

KEY = "trainer.trainer_config.trainer.resume_mode"


def write(checkpoints: CheckpointStore, step: int, text: str = "") -> Path:
    return checkpoints.write(step, lambda folder: (folder / "w").write_text(text) and None, meta={}, keep=0)


def test_a_run_goes_back_once_and_what_it_leaves_is_kept_aside(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path / "job")
    for step in (2, 4, 6):
        write(checkpoints, step, f"first {step}")
    target = tmp_path / "job" / "global_step_2"
    assert rewound(checkpoints, target) == target
    assert checkpoints.steps() == [2]
    assert (tmp_path / "job" / "global_step_6.left_1" / "w").read_text() == "first 6"
    newer = write(checkpoints, 4, "second 4")
    assert rewound(checkpoints, target) == newer, "interrupted, the same command continues"
    assert rewound(checkpoints, newer) == newer
    assert rewound(checkpoints, target) == target, "asked for another one in between, it goes back again"
    assert (tmp_path / "job" / "global_step_4.left_2" / "w").read_text() == "second 4"


def test_a_checkpoint_of_another_job_or_a_torn_one_is_refused(tmp_path: Path) -> None:
    checkpoints, other = CheckpointStore(tmp_path / "job"), CheckpointStore(tmp_path / "other")
    with pytest.raises(CheckpointError, match="actor/huggingface as model.model_path") as found:
        rewound(checkpoints, write(other, 2))
    assert found.value.code == "E7044"
    torn = write(checkpoints, 2, "whole")
    newest = write(checkpoints, 4)
    (torn / "w").write_text("torn!")
    with pytest.raises(CheckpointError, match="checksum") as found:
        rewound(checkpoints, torn)
    assert found.value.code == "E7001" and checkpoints.latest() == newest


def test_disable_begins_anew_under_another_name_and_its_resume_does_not(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(PLAIN | {"checkpoint_root_dir": str(tmp_path / "out")}))
    (tmp_path / "out" / "tiny" / "run").mkdir(parents=True)
    (tmp_path / "out" / "tiny" / "run" / "run.json").write_text("{}")
    assert plan_run(file, RunOptions()).stages[0].config.name == "run"
    options = RunOptions(overrides=[f"{KEY}=disable"])
    config = plan_run(file, options).stages[0].config
    assert config.name.startswith("run_20") and not config.continue_from_checkpoint
    again = RunOptions(overrides=[*options.overrides, *options.resume_overrides])
    config_again = plan_run(file, again).stages[0].config
    assert config_again.name == config.name and config_again.continue_from_checkpoint
