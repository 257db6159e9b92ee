"""The printed command of a run that was interrupted, pasted: it repeats what was given, and the run continues."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import TinyRun
from trinity.cli.app import app
from trinity.common.errors import ExitCode
from trinity.launch.job import LOCK, write_record
from trinity.utils import failpoints

pytestmark = pytest.mark.slow

CANARY = "canary-paste-4711"
VARIABLE = "TRINITY_MONITOR_MONITOR_ARGS_API_KEY"
PLUGIN = """
import os
import signal
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("sends_a_signal")
class SendsASignal(RewardFn):
    calls = 0

    def __call__(self, **kwargs):
        self.calls += 1
        name = os.environ.pop("OWN_SIGNAL", None) if self.calls > 1 else None
        if name:
            os.kill(os.getpid(), getattr(signal, name))
        return {"accuracy": 0.5}
"""
Again = ("--set", "continue_from_checkpoint=false")
SECRET = ("--set", f"monitor.monitor_args.api_key={CANARY}")
LR = ("--set", "algorithm.optimizer.lr=0.0005")
DISABLED = ("--set", "trainer.trainer_config.trainer.resume_mode=disable")
# What interrupts the run: a signal that user code sends or a failpoint, and the options that it is started with.
KINDS: dict[str, tuple[str, str, tuple[str, ...], int]] = {
    "Ctrl-C": ("SIGINT", "", (), ExitCode.INTERRUPTED),
    "SIGTERM, quiet": ("SIGTERM", "", ("--quiet",), ExitCode.TERMINATED),
    "SIGHUP": ("SIGHUP", "", (), ExitCode.TERMINATED),
    "trainer fails": ("", "train.before_step=raise@2", (), ExitCode.RUNTIME),
    "explorer fails": ("", "explore.after_rollout=raise@2", ("--set", "name=a b+c"), ExitCode.RUNTIME),
    "full disk": ("", "ckpt.after_files=enospc@2", (), ExitCode.CHECKPOINT),
    "Ctrl-C with a secret": ("SIGINT", "", SECRET, ExitCode.INTERRUPTED),
    "failure with a secret": ("", "store.append.before_commit=raise@2", (*SECRET, "-q"), ExitCode.RUNTIME),
    "begun again": ("", "train.before_step=raise@2", Again, ExitCode.RUNTIME),
    "begun again, as veRL says it": ("SIGTERM", "", DISABLED, ExitCode.TERMINATED),
    "a change was accepted": (
        "SIGINT", "", (*LR, "--accept-change", "algorithm.optimizer.lr"), ExitCode.INTERRUPTED
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.configure("")


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, because a process loads a plugin once; its name has a space."""
    folder = tmp_path_factory.mktemp("own plugins")
    (folder / "sends_a_signal.py").write_text(PLUGIN)
    return folder


def make(folder: Path) -> TinyRun:
    """Return a run of four steps, its file written."""
    run = TinyRun(folder).change(buffer__total_steps=4)
    run.change(buffer__explorer_input__default_reward_fn_type="sends_a_signal")
    (folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    return run


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def printed(output: str) -> list[str]:
    """Return the words of the printed command."""
    (line,) = (line for line in output.splitlines() if line.startswith("resume with: "))
    return shlex.split(line.removeprefix("resume with: "))


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of all jobs below a folder by name."""
    return {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("run.json")}


@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_command_continues_the_run(
    tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    signal_name, points, options, code = KINDS[kind]
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["run", "--config", "run.yaml", "--plugin-dir", str(plugins)]
    if "--accept-change" in options or options in (Again, DISABLED):  # they are about a job that is there
        failpoints.configure("train.before_step=raise@2")
        assert invoke(*command).exit_code == ExitCode.RUNTIME
    if signal_name:
        monkeypatch.setenv("OWN_SIGNAL", signal_name)
    failpoints.configure(points)
    first = invoke(*command, *options)
    assert first.exit_code == code, first.output
    failpoints.configure("")
    jobs = records(tmp_path)
    assert sorted(each["exit_code"] for each in jobs.values())[-1] == code
    assert {each["status"] for each in jobs.values()} <= {"failed", "stopped"}, jobs
    command = printed(first.output)
    assert command[0] == "trinity"
    if CANARY in str(options):
        kept = [path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
        assert CANARY not in first.output and kept == []
        assert f"export {VARIABLE}=... (monitor.monitor_args.api_key)" in first.output
        missing = invoke(*command[1:])
        assert missing.exit_code == ExitCode.USAGE and f"`{VARIABLE}` is not set" in missing.output
        monkeypatch.setenv(VARIABLE, CANARY)
    pasted = invoke(*command[1:])
    assert pasted.exit_code == 0, pasted.output
    after = records(tmp_path)
    assert sorted(after) == sorted(jobs), "no other job was begun"
    name = max(tmp_path.rglob("run.json"), key=lambda path: path.stat().st_mtime_ns).parent.name
    assert (after[name]["status"], after[name]["exit_code"], after[name]["error"]) == ("done", 0, None)
    assert after[name]["training_step"] == 4 and CANARY not in pasted.output
    is_quiet = bool({"-q", "--quiet"} & set(options))
    assert ("continuing from step " in pasted.output) is not is_quiet, pasted.output


@pytest.mark.nightly
def test_a_program_that_was_not_found_by_name_is_called_as_it_was(tmp_path: Path, plugins: Path) -> None:
    run = make(tmp_path)
    run.plugin = PLUGIN
    cut = run.finish(*SECRET, failpoints="train.before_step=raise@2", is_real=True)
    assert cut.status == ExitCode.RUNTIME and CANARY not in cut.output, cut.output
    assert CANARY not in (run.job / LOCK).read_text()
    note = (run.job / LOCK).read_text().splitlines()[1]
    assert note.startswith(f"cd {tmp_path} && ") and note.endswith(shlex.join(printed(cut.output)))
    pasted = subprocess.run(
        ["sh", "-c", note],
        cwd="/",
        env=os.environ | {VARIABLE: CANARY, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert pasted.returncode == 0, pasted.stderr
    assert "continuing from step 1 " in pasted.stderr and CANARY not in pasted.stderr


def test_a_run_that_was_killed_is_not_recorded_as_running_by_a_start_that_is_refused(
    tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["run", "--config", "run.yaml", "--plugin-dir", str(plugins)]
    failpoints.configure("train.before_step=raise@2")
    assert invoke(*command).exit_code == ExitCode.RUNTIME
    record = records(tmp_path)["run"]
    assert record["status"] == "failed" and record["error"].startswith("RuntimeError: failpoint train.before_step")
    write_record(run.job, status="running")  # as kill -9 leaves it
    refused = invoke(*command, *LR)
    assert refused.exit_code == ExitCode.CHECKPOINT and "optim.lr: 0.001 -> 0.0005 (derived: " in refused.output
    assert records(tmp_path)["run"]["status"] == "killed"
