"""Rollouts of the past and the rows that they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trinity.common.config import Config
from trinity.common.errors import DataError
from trinity.launch.reuse.past_tasks import PastTasks


def configuration(folder: Path, reward: str) -> Config:
    format_ = {"prompt_key": "prompt", "response_key": "response"}
    taskset = {"name": "t", "path": str(folder / "rows.jsonl"), "format": format_, "default_reward_fn_type": reward}
    taskset |= {"default_workflow_type": "math_workflow"}
    buffer = {"explorer_input": {"taskset": taskset}}
    return Config.model_validate({"checkpoint_job_dir": str(folder), "buffer": buffer})


@pytest.mark.parametrize("bad", [None, 50])
def test_a_reward_that_can_use_other_rows_is_refused(bad: int | None, tmp_path: Path) -> None:
    """A rollout names its row by its number among the usable ones."""
    truths = ["not json" if row == bad else json.dumps({"target": row, "numbers": [row, 1]}) for row in range(200)]
    rows = [{"prompt": f"q{row}", "response": truth} for row, truth in enumerate(truths)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own, other = (configuration(tmp_path, reward) for reward in ("math_reward", "countdown_reward"))
    if bad is None:
        assert len(PastTasks(other, {}, own=own)._readers[0]) == 200
        return
    with pytest.raises(DataError, match="could use 200 rows, this reward can use 199; they differ in row 51") as caught:
        PastTasks(other, {}, own=own)
    assert caught.value.code == "E4073"
