"""The printed resume command continues the run that was interrupted; a damaged checkpoint costs nothing but time."""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
from pathlib import Path

import pytest

from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import ExitCode

pytestmark = pytest.mark.slow


def resume_words(output: str) -> list[str]:
    """Return what the printed command adds to `trinity run --config run.yaml`."""
    (command,) = (line for line in output.splitlines() if line.startswith("resume with: "))
    words = shlex.split(command.removeprefix("resume with: "))
    start = words.index("trinity")
    assert words[start : start + 4] == ["trinity", "run", "--config", "run.yaml"]
    return words[start + 4 :]


def final_weights(run: TinyRun, step: int) -> str:
    weights = run.job / f"global_step_{step}" / "actor" / "huggingface" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def test_a_run_that_was_renamed_is_resumed_under_its_new_name(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    assert run.finish().status == 0
    again = run.finish("--set", "continue_from_checkpoint=false", failpoints="train.after_step=raise@2")
    assert again.status == ExitCode.RUNTIME, again.output
    jobs = sorted(path.name for path in run.job.parent.iterdir())
    assert len(jobs) == 2 and jobs[0] == "run" and jobs[1].startswith("run_2")
    resumed = run.finish(*resume_words(again.output))
    assert resumed.status == 0, resumed.output
    assert sorted(path.name for path in run.job.parent.iterdir()) == jobs, "no third job"
    record = json.loads((run.job.parent / jobs[1] / "run.json").read_text())
    assert (record["status"], record["training_step"]) == ("done", 2)


def test_a_damaged_newest_checkpoint_is_passed_over_loudly_and_the_result_is_the_same(tmp_path: Path) -> None:
    whole, cut = TinyRun(tmp_path / "whole"), TinyRun(tmp_path / "cut")
    for run in (whole, cut):
        run.change(deterministic=True, buffer__total_steps=4)
        # So small a model earns no reward: the entropy makes every row count and every update move.
        run.change(algorithm__entropy_loss_fn_args={"entropy_coef": 0.01})
    cut.change(trainer__trainer_config={"trainer": {"del_local_ckpt_after_load": True}})
    assert whole.finish(is_real=True).status == 0
    assert cut.finish(failpoints="train.after_step=kill@4").status == -signal.SIGKILL
    state = cut.job / "global_step_3" / "actor" / "model_world_size_1_rank_0.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    read = {file: file.read_bytes() for file in (cut.job / "global_step_2").rglob("*") if file.is_file()}
    resumed = cut.finish()
    assert resumed.status == 0, resumed.output
    assert "del_local_ckpt_after_load: true` has no effect" in resumed.output
    assert len(read) > 5 and all(file.read_bytes() == content for file, content in read.items()), (
        "read, and still there"
    )
    assert f"{state.name} does not match its checksum; FALLING BACK to " in resumed.output
    assert final_weights(cut, 4) == final_weights(whole, 4)
    assert min(line["actor/grad_norm"] for line in whole.lines("trainer")) > 0
