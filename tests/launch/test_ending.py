"""What a run leaves at its end, from folders as runs leave them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.summary.jobs import ACCURACY, NOTE, made_job, monitor
from trinity.cli.app import app
from trinity.cli.run import summaries
from trinity.common.errors import DataError, ExitCode
from trinity.launch.ending import job_summary, leave_summary
from trinity.launch.job import read_record, recorded, write_record
from trinity.launch.run import RunOptions

SAID = "<b>& half: \ud83d</b>"


def leave(job: Path, **values: Any) -> dict[str, Any]:
    leave_summary(job, **({"fates": {}, "url": None} | values))
    found: dict[str, Any] = json.loads((job / "summary.json").read_text())
    return found


def test_a_finished_job_has_its_figures_its_curve_and_its_page(tmp_path: Path) -> None:
    job = made_job(tmp_path / "job")
    (job / "eval" / "held").mkdir(parents=True)
    lines = [
        {"task": n, "prompt": "p", "response": f"{SAID} {n}", "reward": float(n), "metrics": None} for n in range(6)
    ]
    (job / "eval" / "held" / "explorer_step_20.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = leave(job)
    assert (found["status"], found["training_step"], found["seconds"]) == ("done", 20, 12.5)
    assert found["best"]["checkpoint"] == str(job / "global_step_10") and found["notes"] == []
    assert found["metrics"][0]["metric"] == ACCURACY and found["files"] == ["report.html", "learning_curve.png"]
    assert [each["what"] for each in found["commands"]] == ["show", "convert"]
    assert found["commands"][0]["command"] == f"trinity show {job} --eval held"
    text = (job / "report.html").read_text()
    # The two worst and the two best of six; half a character is written as a question mark.
    assert [n for n in range(6) if f"&lt;b&gt;&amp; half: ?&lt;/b&gt; {n}</pre>" in text] == [0, 1, 4, 5]
    assert "<b>" not in text and "<polyline" in text
    assert job_summary(job).text() == (job / "summary.json").read_text()


def test_what_is_newer_than_the_file_counts(tmp_path: Path) -> None:
    job = made_job(tmp_path / "job")
    leave(job)
    write_record(job, status="stopped", training_step=18)
    os.utime(job / "run.json", (later := time.time() + 9, later))
    assert (job_summary(job).status, job_summary(job).training_step) == ("stopped", 18)
    (job / "summary.json").write_text("{")
    os.utime(job / "summary.json", (later + 9, later + 9))
    assert job_summary(job).status == "stopped"
    job.rename(moved := tmp_path / "moved")
    assert job_summary(moved).checkpoints[0].path == str(moved / "global_step_10")


@pytest.mark.parametrize(("status", "error"), [("stopped", None), ("failed", "the model is gone"), ("running", None)])
def test_a_run_that_did_not_end_well_has_what_there_is_and_the_command_to_go_on(
    tmp_path: Path, status: str, error: str | None
) -> None:
    job = made_job(tmp_path / "job", status=status, error=error, training_step=0, explore_step=0)
    found = leave(job)
    assert found["status"] == {"running": "killed"}.get(status, status) and found["error"] == (error or "")
    # A run that ended in order knows its steps; of others the metrics do.
    assert found["training_step"] == found["explore_step"] == (0 if status == "stopped" else 20)
    assert found["commands"][0] == {"what": "resume", "command": f"trinity resume {job}"}
    lines = CliRunner().invoke(app, ["status", str(job)]).stdout
    assert f"summary of {job}: {found['status']}" in lines and f"resume {job}" in lines
    told = json.loads(CliRunner().invoke(app, ["status", str(job), "--json"]).stdout)
    assert told["summary"] == found


def test_parts_that_run_apart_share_a_summary(tmp_path: Path) -> None:
    job = made_job(tmp_path / "job")
    (job / "run.json").unlink()
    write_record(job, "trainer", status="done", training_step=20, seconds=10.0)
    write_record(job, "explorer", status="failed", error="no tasks", explore_step=7, seconds=2.5)
    (job / "locks" / "explorer.lock").write_text(f"pid 1 on here since 2026-01-01 00:00:00\n{NOTE}\n")
    found = leave(job)
    assert (found["status"], found["error"], found["seconds"]) == ("failed", "no tasks", 12.5)
    assert found["commands"][0]["command"] == f"trinity resume {job} --part explorer"


def test_rollouts_that_were_counted_and_cannot_be_read_are_told_to_be_missing(tmp_path: Path) -> None:
    job = made_job(tmp_path / "job")
    monitor(job, "explorer").log({"fate/issued": 4.0}, 20)
    (job / "config.yaml").write_text("project: p\nname: n\n")
    found = leave(job)
    assert found["rollouts"] == {} and "what happened to the rollouts: " in " ".join(found["notes"])
    assert f"trinity export experience {job} -o experience.parquet" in [each["command"] for each in found["commands"]]


def test_a_summary_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = made_job(tmp_path / "job", steps=2)
    (job / "report.html" / "in the way").mkdir(parents=True)
    leave_summary(job, fates={}, url=None)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert str(job) in warning and "report.html" in warning and "the run itself ended as its exit code says" in warning
    assert not (job / "summary.json").exists() and job_summary(job).status == "done"


def test_a_run_of_several_stages_shows_each_of_them_and_a_quiet_one_none(tmp_path: Path) -> None:
    jobs = [made_job(tmp_path / name, steps=steps, stage=name) for name, steps in (("warm_up", 2), ("rft", 4))]
    for job in jobs:
        leave(job)
    options = RunOptions(job_dirs=[*jobs, tmp_path / "without one"])
    heads = [line for line in summaries(options) if line.startswith("summary of")]
    assert [head.split(",")[1] for head in heads] == [" training step 2", " training step 4"]
    assert [job_summary(job).stage for job in jobs] == ["warm_up", "rft"]
    assert summaries(RunOptions(job_dirs=jobs, is_quiet=True)) == []


def test_the_time_of_a_run_that_fails_is_added_to_that_of_those_before(tmp_path: Path) -> None:
    write_record(tmp_path, seconds=100.0)
    with pytest.raises(DataError), recorded(tmp_path, None, "a: 1\n") as attempt:
        attempt.has_begun = lambda: True
        raise DataError("no rows", code="E4001")
    record = read_record(tmp_path)
    assert (record["status"], record["exit_code"]) == ("failed", int(ExitCode.DATA))
    assert 100.0 < record["seconds"] < 160.0


def test_the_summary_of_a_small_job_takes_little_of_a_processor(tmp_path: Path) -> None:
    job = made_job(tmp_path / "job")
    leave(job)  # what is imported is no part of it
    started = time.process_time()
    leave(job)
    assert time.process_time() - started < 1.0
