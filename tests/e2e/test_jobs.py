"""`trinity runs`, `status`, `log`, `stop` and `resume`, on a run that is under way, stopped, killed and continued."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.e2e.test_interrupted_run import wait_for
from tests.e2e.tiny_run import TinyRun
from tests.prepared import DEADLINE_S
from trinity.cli.app import app
from trinity.launch.jobs import job_state
from trinity.utils.locks import FileLock, part_lock

pytestmark = pytest.mark.slow
LONG = 100_000


def trinity(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def facts(run: TinyRun) -> dict[str, Any]:
    done = trinity("status", run.job, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run that is done; tests read it, or copy its folder."""
    run = TinyRun(tmp_path_factory.mktemp("done"))
    ended = run.finish()
    assert ended.status == 0
    (run.folder / "output.txt").write_text(ended.output)
    return run


def test_a_run_is_listed_stopped_and_resumed_to_its_end(tmp_path: Path) -> None:
    run = TinyRun(tmp_path).change(buffer__total_steps=LONG)
    process = run.start()
    try:
        wait_for(run.job / "global_step_1")
        (listed,) = json.loads(trinity("runs", tmp_path, "--json").stdout)
        assert listed["status"] == "running" and listed["job"] == str(run.job)
        assert f"pid {process.pid} on" in listed["parts"][0]["holder"]
        assert "running" in trinity("runs", tmp_path).stdout
        refused = trinity("resume", run.job)
        assert refused.exit_code == 8 and "[E8001]" in refused.output and f"pid {process.pid}" in refused.output
        reader = threading.Thread(target=process.communicate)  # what nobody reads would block it at its end
        reader.start()
        ended = trinity("stop", run.job)
        reader.join(DEADLINE_S)
    finally:
        process.kill()
    assert ended.exit_code == 0 and "stopped: " in ended.stdout, ended.output
    found = facts(run)
    assert found["status"] == "stopped" and found["parts"][0]["training_step"] == found["checkpoints"][-1]
    assert f"continue with: trinity resume {run.job}" in trinity("status", run.job).stdout
    last = found["checkpoints"][-1] + 1
    shown = json.loads(trinity("resume", run.job, "--show", "--json").stdout)
    assert shown["folder"] == str(run.folder) and shown["command"].startswith("trinity run --config run.yaml")
    again = run.finish("--set", f"buffer.total_steps={last}", "--json", words=("resume", str(run.job)))
    assert again.status == 0, again.output
    told = json.loads(again.output[again.output.index("\n{\n") :])
    assert (told["exit_code"], told["error"]) == (0, None) and "trinity run" in told["resume"]
    found = facts(run)
    assert told["summaries"] == [found["summary"]]
    assert found["status"] == "done" and found["checkpoints"][-1] == last == found["parts"][0]["training_step"]


def test_a_run_that_was_killed_is_told_from_one_that_runs(tmp_path: Path) -> None:
    run = TinyRun(tmp_path).change(buffer__total_steps=LONG)
    process = run.start()
    wait_for(run.job / "global_step_1")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert facts(run)["status"] == "killed"
    nothing = trinity("stop", run.job)
    assert nothing.exit_code == 2 and "[E8005]" in nothing.output


def test_the_state_of_a_run_that_is_done_has_its_last_figures(done: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(done.folder)  # places are shown as one types them there
    text = trinity("status", done.job).stdout
    assert "done" in text and "checkpoints: 1, 2" in text and "reward" in text and "continue with" not in text
    told = (done.folder / "output.txt").read_text()
    assert (table := text[text.index("  metric ") : text.index("  next")]) in told, "the same as at its end"
    assert "8 issued = 8 trained + 0 waiting" in table and "dropped" in table
    rows = trinity("runs", done.folder).stdout.splitlines()
    assert len(rows) == 2 and rows[1].split()[:3] == [str(done.job), "done", "2"]


def test_the_log_s_last_lines_have_the_name_of_their_file(done: TinyRun) -> None:
    lines = trinity("log", done.job, "-n", "2").stdout.splitlines()
    assert len(lines) == 6 and {line.split(":")[0] for line in lines} == {"run", "explorer", "trainer"}
    only = trinity("log", done.job, "-n", "1", "--part", "trainer").stdout
    assert only.startswith("trainer: ") and only.count("\n") == 1 and "checkpoint of step 2" in only
    (told,) = trinity("log", done.job, "-n", "1", "--part", "trainer", "--json").stdout.splitlines()
    assert json.loads(told) == dict(zip(("file", "line"), only.rstrip().split(": ", 1), strict=True))


def test_a_followed_log_gives_the_lines_that_come_and_of_files_that_come(done: TinyRun, tmp_path: Path) -> None:
    shutil.copytree(done.job, job := tmp_path / "job")
    (job / "log" / "new.log").write_bytes(b"old\nlast\nhal")
    run = TinyRun(tmp_path)
    process = run.start(words=("log", str(job), "-n", "1", "--follow", "--part", "new"))
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "new: last\n"
        with open(job / "log" / "new.log", "ab") as file:
            file.write(b"f\n")
        assert process.stdout.readline() == "new: half\n"
        (job / "log" / "newer.log").write_bytes(b"first\nsecond\n")
        assert [process.stdout.readline() for _ in range(2)] == ["newer: first\n", "newer: second\n"]
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()


def test_what_is_no_job_is_refused_with_the_way_to_find_one(tmp_path: Path) -> None:
    for words in (("status",), ("log",), ("stop",), ("resume",)):
        refused = trinity(*words, tmp_path)
        assert refused.exit_code == 2 and "[E1922]" in refused.output and "trinity runs" in refused.output
    assert trinity("runs", tmp_path).stdout.startswith("no runs in")


def test_a_run_of_another_machine_is_not_signalled(done: TinyRun, tmp_path: Path) -> None:
    """Its process would be somebody else's here."""
    shutil.copytree(done.job, job := tmp_path / "job")
    lock = FileLock(part_lock(job, "explorer_1"), note="cd /elsewhere && trinity run --config run.yaml")
    (job / "locks" / "explorer_1.lock").write_text("pid 1 on another-machine since 2026-01-01 00:00:00\n\n")
    refused = trinity("stop", job)
    lock.release()
    assert refused.exit_code == 8 and "[E8006]" in refused.output and "another-machine" in refused.output


@pytest.mark.parametrize(
    "note",
    [
        "",
        "rm -rf /",
        "cd / && sh -c 'echo run'",
        "cd / && trinity run --config a.yaml --exec b",
        "cd / && trinity run --config 'a",
    ],
)
def test_only_the_options_of_a_run_are_taken_from_a_note(done: TinyRun, tmp_path: Path, note: str) -> None:
    """A folder may come from somebody else: its words are no shell's."""
    shutil.copytree(done.job, job := tmp_path / "job")
    (job / "run.lock").write_text(f"pid 1 on here since 2026-01-01 00:00:00\n{note}\n")
    refused = trinity("resume", job, "--show")
    assert refused.exit_code == 2 and "[E8008]" in refused.output


def test_a_record_that_cannot_be_read_is_told(done: TinyRun, tmp_path: Path) -> None:
    shutil.copytree(done.job, job := tmp_path / "job")
    (job / "run.json").write_text("{")
    state = job_state(job)
    assert state.status == "unreadable" and "not valid JSON" in state.parts[0].error
    assert "unreadable" in trinity("runs", tmp_path).stdout
