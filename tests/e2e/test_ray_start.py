"""The commands that the page gives for a cluster of several machines, as they are written there, on one machine."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.short_run import ROOT
from tests.e2e.test_own_ray import trains

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "scale-out.md"
COMMAND_S = 300
FIRST = "FIRST_MACHINE"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the test's own, short because Ray's sockets lie in it; what was started with it ends with the test."""
    folder = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    left = [each for each in psutil.process_iter() if each.pid != os.getpid() and of_home(each, folder)]
    for each in left:
        each.kill()
    psutil.wait_procs(left, timeout=30)
    shutil.rmtree(folder, ignore_errors=True)


def of_home(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get("RAY_TMPDIR") == str(folder)
    except psutil.Error:
        return False


def command(text: str, *, address: str, is_exported: bool = False) -> None:
    """Run a command of the page, in which the first machine is at `address`; with the page's `export` before it."""
    port = address.rpartition(":")[2]
    text = text.replace(f"{FIRST}:6379", address).replace("--port=6379", f"--port={port}")
    exported = re.search(r"`export (RAY_AUTH_MODE)=(token)` there before `ray start --address`", PAGE.read_text())
    assert exported is not None
    env = os.environ | (dict([exported.groups()]) if is_exported else {})
    done = subprocess.run(
        text.split(),
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.runs("docs/scale-out.md", "ray start")
@pytest.mark.runs("docs/cluster.md", "ray start", "trinity run")
@pytest.mark.parametrize(
    "has_token", [pytest.param(False, id="no token", marks=pytest.mark.nightly), pytest.param(True, id="token")]
)
def test_the_commands_of_the_page_start_a_cluster_that_a_run_joins(home: Path, has_token: bool) -> None:
    """`ray start --head`, `ray start --address`, `trinity run`, by a user whom Ray has once given a token or not."""
    if has_token:
        (home / ".ray").mkdir()
        (home / ".ray" / "auth_token").write_text("c" * 32)
    lines = re.findall(r"^(ray start --(?:head|address)\S* .*?) {2,}# on ", PAGE.read_text(), re.MULTILINE)
    head, other = lines
    assert all(f"\n{line}  " in (ROOT / "docs" / "cluster.md").read_text() for line in lines)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (home / "run").mkdir()
    command(head, address=f":{port}")
    address = (home / "ray" / "ray_current_cluster").read_text().strip()
    command(other, address=address, is_exported=has_token)
    run = trains(home / "run").change(cluster__node_num=2, cluster__ray_address=address)
    ended = run.finish(timeout_s=COMMAND_S)
    assert ended.status == 0, ended.output
    assert f"joined the Ray cluster at {address}: 2 machines, 16 GPUs" in ended.output, ended.output
    assert (run.job / "global_step_2").is_dir()
