"""A run that has no Ray cluster to join: it starts one and ends it, or says which one to start; and a wrong token."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import page
from tests.e2e.parts import Parts
from tests.e2e.plugin_texts import REWARD
from tests.e2e.ray_run import WAIT_S, Watched
from tests.e2e.test_algorithms import make_run
from tests.e2e.tiny_run import TinyRun
from tests.runtime.cluster_process import cluster_process
from tests.runtime.test_contract import gone_soon
from trinity.common.errors import EnvironmentProblem
from trinity.launch.placement import placed
from trinity.launch.run import RunOptions, plan_run

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of Ray's own in which nobody has noted a cluster; short, because sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def descendants(pid: int) -> dict[int, tuple[str, str]]:
    """Return state and command of every process below one; the state of a stopped one is `T`."""
    parents, found = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
            found[int(entry.name)] = (words[0], (entry / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(entry.name)] = int(words[1])
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return {child: found[child] for child in below - {pid}}


def held(watched: Watched) -> int:
    """Return the process that a failpoint has stopped: until it continues the run cannot end."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and watched.process.poll() is None:
        for pid, (state, _) in descendants(watched.process.pid).items():
            if state == "T":
                return pid
        time.sleep(0.1)
    if watched.process.poll() is not None:
        watched.end()
    raise AssertionError(f"no process has stopped:\n{watched.output}")


def trains(folder: Path) -> TinyRun:
    """Return a run of one actor: it trains two steps on a dataset."""
    data = {"name": "sums", "storage_type": "file", "path": "train.jsonl", "schema_type": "sft"}
    data["format"] = {"prompt_type": "plaintext", "prompt_key": "question", "response_key": "answer"}
    run = TinyRun(folder)
    run.change(mode="train", algorithm={"algorithm_type": "sft"}, cluster__runtime="ray", trainer__total_steps=2)
    run.tree["buffer"] = {"train_batch_size": 2, "trainer_input": {"experience_buffer": data}}
    for section in ("explorer", "synchronizer"):
        del run.tree[section]
    return run


@pytest.mark.runs("docs/scale-out.md", "trinity run")
@pytest.mark.difference("Ray")
def test_ray_is_started_for_a_run_and_ends_with_it(tmp_path: Path, no_cluster: Path) -> None:
    run = trains(tmp_path)
    del run.tree["cluster"]
    (line,) = page("docs/scale-out.md").lines("trinity run --config run.yaml ")
    with Watched(run, *shlex.split(line)[4:], failpoints="trainer:train.before_step=stop@2") as watched:
        stopped = held(watched)
        below = descendants(watched.process.pid)
        os.kill(stopped, signal.SIGCONT)
        assert watched.end() == 0, watched.output
    assert ": started Ray on this machine: 1 machines" in watched.output, watched.output
    assert (run.job / "global_step_2").is_dir(), watched.output
    for program in ("raylet/raylet ", "gcs_server "):
        assert any(program in command for _, command in below.values()), below
    assert all(gone_soon(pid, 30) for pid in below), below
    assert not list(no_cluster.iterdir()) and not (run.job / "log" / "ray").exists(), "its session is gone with it"


def test_a_failure_on_a_ray_of_its_own_keeps_what_ray_said_and_nothing_else_of_it(
    tmp_path: Path, no_cluster: Path
) -> None:
    run = trains(tmp_path).change(checkpoint_root_dir=str(tmp_path / "out"), cluster__ray_address="local")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    config = plan_run(tmp_path / "run.yaml", RunOptions()).stages[0].config
    with pytest.raises(ZeroDivisionError), placed(config):
        assert list(no_cluster.glob("trinity-*/session_*/sockets/raylet*")), "its session is in this process's folder"
        raise ZeroDivisionError
    assert list((run.job / "log" / "ray").glob("raylet*.out")) and not list(no_cluster.iterdir())


@pytest.mark.nightly
def test_sigterm_to_the_group_of_a_run_with_its_own_ray_ends_it_in_order(tmp_path: Path, no_cluster: Path) -> None:
    """As `timeout`, a scheduler or a closed terminal send it: to all processes of the group."""
    run = trains(tmp_path)
    with Watched(run.change(trainer__total_steps=40), failpoints="trainer:train.before_step=stop@2") as watched:
        stopped = held(watched)
        below = descendants(watched.process.pid)
        os.killpg(watched.process.pid, signal.SIGTERM)
        watched.until("SIGTERM: ending the current step")
        os.kill(stopped, signal.SIGCONT)
        assert watched.end() == 143, watched.output
    assert (run.job / "global_step_2").is_dir() and "E5706" not in watched.output, watched.output
    assert re.fullmatch(r"resume with: .*trinity run --config run\.yaml", watched.output.splitlines()[-1]), (
        watched.output
    )
    assert json.loads((run.job / "run.json").read_text())["status"] == "stopped"
    assert all(gone_soon(pid, 30) for pid in below), below


def test_two_commands_that_share_gpus_are_told_to_start_ray_first(
    tmp_path: Path, no_cluster: Path, plugins: Path
) -> None:
    parts = Parts(tmp_path / "run", plugins)
    parts.trees["explorer"]["cluster"] = {"node_num": 1, "gpu_per_node": 4}
    with pytest.raises(
        EnvironmentProblem, match=r"(?s)on the same 4 GPUs.*\n  ray start --head --port=6379\n"
    ) as error:
        parts.run("explorer")
    assert error.value.code == "E3408" and not list(no_cluster.iterdir()), "no Ray was started"


def test_a_cluster_that_asks_for_another_token_is_told(tmp_path: Path, no_cluster: Path) -> None:
    run = make_run(tmp_path, {"algorithm_type": "grpo"})
    run.plugin = REWARD
    tokens = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32}
    with cluster_process(tokens) as address, pytest.MonkeyPatch.context() as patch:
        run.change(cluster__runtime="ray", cluster__ray_address=address)
        patch.setenv("RAY_AUTH_TOKEN", "b" * 32)
        ended = run.finish()
    assert ended.status == 3, ended.output
    assert "failed with exit code 3: [E3402] the Ray cluster does not take this driver" in ended.output, ended.output
    assert "RAY_AUTH_TOKEN" in ended.output and "b" * 32 not in ended.output
