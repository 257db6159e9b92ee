"""Job folders: one owner at a time, torn records refused, configurations compared key by key."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from trinity.common.constants import TRAINER
from trinity.common.errors import AlreadyRunningError, CheckpointError, EnvironmentProblem, ExitCode
from trinity.launch.job import (
    DEBUG_FOLDER,
    LOCK,
    RECORD,
    SAVED_CONFIG,
    JobLock,
    check_same_config,
    has_content,
    read_record,
    record_end,
    unsafe_changes,
    write_record,
)

HOLD = """
import sys, time
from pathlib import Path
from trinity.launch.job import JobLock
lock = JobLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunningError, match=f"pid {holder.pid} ") as caught:
            JobLock(tmp_path)
        assert caught.value.exit_code == ExitCode.ALREADY_RUNNING
    finally:
        holder.kill()
        holder.communicate(timeout=10)
    JobLock(tmp_path).release()  # a killed holder leaves nothing behind


def test_a_job_has_one_trainer_beside_its_explorers(tmp_path: Path):
    trainer, explorer = JobLock(tmp_path, TRAINER), JobLock(tmp_path, "explorer")
    with pytest.raises(AlreadyRunningError, match="has a live trainer already") as second:
        JobLock(tmp_path, TRAINER)
    assert second.value.code == "E8003"
    trainer.release()
    JobLock(tmp_path, TRAINER).release()
    explorer.release()


def test_a_folder_that_cannot_be_written_is_an_environment_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="checkpoint_root_dir"):
        JobLock(tmp_path / "file" / "job")


def test_a_record_merges_and_survives_reading(tmp_path: Path):
    write_record(tmp_path, status="running", seconds=1.5)
    write_record(tmp_path, status="done")
    assert read_record(tmp_path) == {"status": "done", "seconds": 1.5}


@pytest.mark.parametrize("torn", ['{"status": "do', "", "[]"])
def test_a_torn_record_is_an_error_and_never_means_start_again(tmp_path: Path, torn: str):
    (tmp_path / RECORD).write_text(torn)
    with pytest.raises(CheckpointError, match=RECORD):
        read_record(tmp_path)


def test_the_lock_alone_does_not_count_as_content(tmp_path: Path):
    assert not has_content(tmp_path / "missing")
    (tmp_path / LOCK).write_text("")
    (tmp_path / DEBUG_FOLDER).mkdir()
    assert not has_content(tmp_path)
    (tmp_path / RECORD).write_text("{}")
    assert has_content(tmp_path)


def test_changes_that_alter_the_run_are_listed_key_by_key_and_safe_ones_are_not():
    old = {"algorithm": {"optimizer": {"lr": 1e-6}, "repeat_times": 8}, "log": {"level": "INFO"}, "seed": 42}
    new = {"algorithm": {"optimizer": {"lr": 1e-5}, "repeat_times": 8}, "log": {"level": "DEBUG"}, "seed": 42}
    assert unsafe_changes(old, new) == [("algorithm.optimizer.lr", 1e-6, 1e-5)]


@pytest.mark.parametrize(
    "key",
    ["project", "model.model_path", "algorithm.algorithm_type", "buffer.explorer_input.taskset.path"],
)
def test_the_folder_of_another_project_model_or_dataset_is_refused(tmp_path: Path, key: str):
    def nested(value: str) -> dict:
        tree: dict = {}
        *parents, last = key.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
        return tree

    (tmp_path / SAVED_CONFIG).write_text(yaml.safe_dump(nested("theirs")))
    with pytest.raises(CheckpointError, match=f"{key}: 'theirs' -> 'mine'") as caught:
        check_same_config(tmp_path, yaml.safe_dump(nested("mine")))
    assert caught.value.code == "E7004" and caught.value.exit_code == ExitCode.CHECKPOINT


def test_a_key_that_appears_or_disappears_is_a_change():
    assert unsafe_changes({"a": {"b": 1}}, {"a": {}}) == [("a", None, {}), ("a.b", 1, None)]


@pytest.mark.difference("Changed configuration on resume")
def test_resuming_with_another_learning_rate_is_refused_until_it_is_accepted(tmp_path: Path):
    (tmp_path / SAVED_CONFIG).write_text(yaml.safe_dump({"algorithm": {"optimizer": {"lr": 1e-6}}}))
    changed = yaml.safe_dump({"algorithm": {"optimizer": {"lr": 2e-6}}})
    with pytest.raises(CheckpointError, match=r"algorithm\.optimizer\.lr: 1e-06 -> 2e-06"):
        check_same_config(tmp_path, changed)
    check_same_config(tmp_path, changed, accepted=["algorithm.optimizer.lr"])


@pytest.mark.parametrize(("error", "status"), [("[E7022] no space", "failed"), (None, "stopped")])
def test_the_end_is_recorded_where_no_file_can_be_written_any_more(tmp_path: Path, error: str | None, status: str):
    write_record(tmp_path, status="running", training_step=3, stage="rft")
    size = (tmp_path / RECORD).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # no file may be longer than the record is
    try:
        record_end(tmp_path, None, exit_code=ExitCode.CHECKPOINT, error=error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_record(tmp_path) == {"status": status, "training_step": 3, "stage": "rft"}
    assert [path.name for path in tmp_path.iterdir()] == [RECORD], "nothing half-written is left"
    record_end(tmp_path, None, exit_code=ExitCode.CHECKPOINT, error="[E7022] no space")
    assert read_record(tmp_path)["exit_code"] == 7


def test_a_section_may_be_accepted_and_what_follows_from_a_key_goes_with_it(tmp_path: Path):
    def text(lr: float, steps: int, copied: float) -> str:
        return yaml.safe_dump({"a": {"lr": lr, "warmup": steps}, "b": {"lr": copied}, "c": {"lr": 7.0}})

    (tmp_path / SAVED_CONFIG).write_text(text(1.0, 5, 1.0))
    new = text(2.0, 6, 2.0)
    with pytest.raises(CheckpointError, match=r"b\.lr: 1\.0 -> 2\.0 .derived: a\.lr\)"):
        check_same_config(tmp_path, new, accepted=["a"], derived={"b.lr": "a.lr"})
    asked = []

    def put_back(values: Mapping[str, float]) -> str:
        asked.append(dict(values))
        return text(values["a.lr"], int(values.get("a.warmup", 6)), values["a.lr"])

    check_same_config(tmp_path, new, accepted=["a"], put_back=put_back)
    with pytest.raises(CheckpointError, match=r"configuration:\n  a\.warmup: 5 -> 6\n"):
        check_same_config(tmp_path, new, accepted=["a.lr"], put_back=put_back)
    assert asked == [{"a.lr": 1.0, "a.warmup": 5}, {"a.lr": 1.0}]
    with pytest.raises(CheckpointError, match=r"  a\.warmup: .*\n  b\.lr: "):  # other values do not go with the rest
        check_same_config(tmp_path, new, accepted=["a.lr"], put_back=lambda _: None)
