"""Runs that are stopped, refused, damaged or changed: the exit status, the message, and what is left."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from trinity.common.errors import ExitCode

pytestmark = pytest.mark.slow


def wait_for(path: Path, *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_signal_saves_prints_the_resume_command_and_changes_no_bit(finished, fresh, number: int, code: int):
    process = fresh.start()
    wait_for(fresh.job("rft") / "metrics.jsonl")
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert f"trinity run --config {fresh.folder / 'quickstart.yaml'}" in output.splitlines()[-1]
    assert "Traceback" not in output
    status, output = fresh.finish()
    assert status == 0, output
    assert fresh.outcome() == finished.outcome()


# What comes between a step under way and the end of its checkpoint; a second each.
TO_THE_CHECKPOINT = (
    "train.before_step", "train.after_step", "ckpt.before_write", "ckpt.after_files", "ckpt.before_manifest",
    "ckpt.before_rename",
)  # fmt: skip


def test_a_second_signal_ends_the_process_at_once(fresh):
    """After one alone the step under way is trained and saved."""
    process = fresh.start(failpoints=";".join(f"{place}=sleep" for place in TO_THE_CHECKPOINT))
    job = fresh.job("sft_warmup")
    wait_for(job / "metrics.jsonl")
    os.kill(process.pid, signal.SIGINT)
    first = ""
    while "ending the current step" not in (line := process.stdout.readline()):
        assert line, first
        first += line
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and not list(job.glob("global_step_*")), first + output
    assert f"trinity run --config {fresh.folder / 'quickstart.yaml'}" in output.splitlines()[-1], output
    record = json.loads((fresh.job("sft_warmup") / "run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("stopped", 130)


def test_a_second_run_of_the_same_job_is_refused_while_the_first_goes_on(fresh):
    first = fresh.start(failpoints="train.before_step=sleep")
    wait_for(fresh.job("sft_warmup") / "metrics.jsonl")
    status, output = fresh.finish()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=30)
    assert status == ExitCode.ALREADY_RUNNING and f"pid {first.pid}" in output


@pytest.mark.difference("`continue_from_checkpoint: false`")
def test_continue_from_checkpoint_false_starts_a_renamed_run_and_keeps_the_old_one(finished, fresh):
    stop_early = ("--set", "stages[1].buffer.total_steps=1")
    assert fresh.finish(*stop_early)[0] == 0
    status, output = fresh.finish(*stop_early, "--set", "continue_from_checkpoint=false")
    assert status == 0, output
    names = sorted(p.name for p in (fresh.folder / "checkpoints" / "quickstart").iterdir())
    assert len(names) == 2 and names[0] == "addition"
    assert len(names[1]) == len("addition_20260101120000") and names[1].startswith("addition_2")


def test_a_run_whose_only_checkpoint_is_damaged_is_refused_and_not_begun_again(fresh):
    status, _ = fresh.finish(failpoints="train.after_step=kill@11")  # step 6 of the second stage; 3 is saved
    assert status == -signal.SIGKILL
    job = fresh.job("rft")
    weights = next((job / "global_step_3" / "actor").glob("model_world_size_1_rank_0.pt"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    status, output = fresh.finish()
    assert status == ExitCode.CHECKPOINT, "it is the only checkpoint of the stage: starting again must be a choice"
    assert "model_world_size_1_rank_0.pt" in output


def test_another_learning_rate_is_refused_with_both_values_and_accepted_by_name(fresh):
    status, _ = fresh.finish(failpoints="train.after_step=kill@4")
    change = ("--set", "stages[0].algorithm.optimizer.lr=0.001")
    status, output = fresh.finish(*change)
    assert status == ExitCode.CHECKPOINT and "algorithm.optimizer.lr: 0.002 -> 0.001" in output
    status, output = fresh.finish(*change, "--accept-change", "algorithm.optimizer.lr")
    assert status == 0, output


def test_a_finished_run_that_is_given_more_steps_goes_on_from_its_end(fresh):
    assert fresh.finish()[0] == 0
    status, output = fresh.finish("--set", "stages[1].buffer.total_steps=6")
    assert status == 0, output
    assert "stage sft_warmup is already complete" in output
    assert fresh.outcome()["rft"]["step"] == 12


@pytest.mark.difference("A stage that fails")
def test_a_failing_stage_ends_the_run_and_no_later_stage_starts(fresh):
    status, output = fresh.finish(failpoints="train.after_step=raise@3")
    assert status == ExitCode.RUNTIME and "failpoint train.after_step" in output
    assert not fresh.job("rft").exists()


def test_a_full_disk_while_saving_ends_the_run_and_the_last_checkpoint_serves(finished, fresh):
    status, output = fresh.finish(failpoints="ckpt.after_files=enospc@2")
    assert status == ExitCode.CHECKPOINT and "disk" in output and str(fresh.job("sft_warmup")) in output
    assert [p.name for p in fresh.job("sft_warmup").glob("global_step_*")] == ["global_step_2"]
    assert fresh.finish()[0] == 0
    assert fresh.outcome() == finished.outcome()


def test_the_checkpoint_transport_gives_the_same_run_as_the_memory_transport(finished, fresh):
    status, output = fresh.finish("--set", "synchronizer.sync_method=checkpoint")
    assert status == 0, output
    assert fresh.outcome() == finished.outcome()
    assert (fresh.job("rft") / "latest_state_dict_iteration.txt").read_text() == "8"


@pytest.mark.difference("Names of workflows, rewards, operators; paths")
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("model.model_path=/nowhere/model", ExitCode.ENVIRONMENT, "E3101"),
        ("stages[0].buffer.trainer_input.experience_buffer.path=/nowhere.jsonl", ExitCode.DATA, "E4001"),
        ("stages[1].algorithm.repeat_tims=4", ExitCode.USAGE, "repeat_times"),
        ("stages[1].trainer.total_steps=abc", ExitCode.USAGE, "trainer.total_steps"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_created(fresh, change: str, code: int, words: str):
    status, output = fresh.finish("--set", change)
    assert status == code and words in output, output
    assert not (fresh.folder / "checkpoints").exists()
    assert "Traceback" not in output


@pytest.mark.difference("Secrets")
def test_a_secret_in_the_configuration_reaches_no_file_and_no_output(fresh):
    canary = "canary-4711-secret"
    file = fresh.folder / "quickstart.yaml"
    tree = yaml.safe_load(file.read_text())
    tree["monitor"]["monitor_args"] = {"api_key": canary}
    file.write_text(yaml.safe_dump(tree))
    _, output = fresh.finish("--set", "stages[1].buffer.total_steps=1")
    assert canary not in output
    holders = [
        path
        for path in fresh.folder.rglob("*")
        if path.is_file() and path != file and canary.encode() in path.read_bytes()
    ]
    assert holders == []
