"""A run is started, watched, stopped, continued and changed by the commands of the pages."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.docs.followed import programs, run_lines
from tests.docs.pages import page
from tests.docs.terminal import Terminal
from tests.e2e.tiny_run import TinyRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JOB = "checkpoints/demo/arithmetic"
WAIT_S = 300.0


def prepared(folder: Path) -> TinyRun:
    """Return a run with a file as that of the README, with a tiny model; the pages have two names for its job."""
    run = TinyRun(folder).change(project="demo", name="arithmetic")
    del run.tree["checkpoint_root_dir"]
    write(run)
    (folder / "outputs" / "my_project").mkdir(parents=True)
    (folder / "outputs" / "my_project" / "my_run").symlink_to(folder / JOB, target_is_directory=True)
    return run


def write(run: TinyRun) -> None:
    """Write its file."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))


def trained(job: Path) -> list[dict[str, float]]:
    """Return the metrics of the training steps, but for a line that is being written."""
    file = job / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line for line in found if line["actor"] == "trainer" and "actor/lr" in line]


def wait_for(what: Callable[[], bool], terminal: Terminal) -> None:
    """Wait until something is so, while a command runs."""
    end = time.monotonic() + WAIT_S
    while not what():
        assert terminal.status() is None and time.monotonic() < end, terminal.printed()
        time.sleep(0.05)


@pytest.mark.runs("README.md", "trinity ")
@pytest.mark.runs("docs/running.md", "trinity runs", "trinity status", "trinity log", "trinity stop", "trinity resume")
@pytest.mark.runs("docs/running.md", "trinity run --config run.yaml --accept-change")
@pytest.mark.runs("docs/configuration.md", "trinity run ")
def test_a_run_is_started_watched_stopped_continued_and_changed(tmp_path: Path) -> None:
    run, job = prepared(tmp_path), tmp_path / JOB
    *before, longer, status = page("README.md").lines("trinity ")
    runs, state, log, stop, resume, changed = page("docs/running.md").lines("trinity ")[3:9]
    (other,) = page("docs/configuration.md").lines("trinity run ")
    with programs() as path:
        variables = {"PATH": path}
        said = run_lines(before, tmp_path, variables)
        assert [line.split()[1] for line in said] == ["validate", "try", "run"] and len(trained(job)) == 2
        with Terminal(longer, tmp_path, variables) as running:
            wait_for(lambda: len(trained(job)) > 3, running)
            said = run_lines([runs, state], tmp_path, variables)
            assert "running" in said[runs] and "running" in said[state]
            with Terminal(log, tmp_path, variables) as watching:
                wait_for(lambda: "step" in watching.printed(), watching)
                assert "stopped" in run_lines([stop], tmp_path, variables)[stop]
            assert running.ended() in (130, 143), running.printed()
        at = len(trained(job))
        with Terminal(resume, tmp_path, variables) as running:
            wait_for(lambda: len(trained(job)) > at, running)
            run_lines([stop], tmp_path, variables)
        write(run.change(algorithm__optimizer__lr=2e-3, buffer__total_steps=200))
        with Terminal(changed, tmp_path, variables) as running:
            wait_for(lambda: trained(job)[-1]["actor/lr"] == 2e-3, running)
            run_lines([stop, status], tmp_path, variables)
        job.rename(tmp_path / "first")
        write(run.change(buffer__total_steps=1))
        run_lines([other], tmp_path, variables)
        assert trained(job)[-1]["actor/lr"] == 2e-6
