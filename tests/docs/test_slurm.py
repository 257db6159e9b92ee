"""The script for SLURM on a real SLURM: two machines, which are this one, with eight GPUs each that are no GPUs."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.followed import STEP, run_lines
from tests.docs.pages import ROOT, page
from tests.e2e.test_own_ray import trains
from tests.e2e.test_ray_start import home as home
from tests.prepared import DEADLINE_S

pytest.importorskip("ray")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin"
LONGEST_S = 900.0
MACHINES = ("one", "two")
SETTINGS = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
MpiDefault=none
ReturnToService=2
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} Gres=gpu:8 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} Gres=gpu:8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@pytest.fixture
def slurm(home: Path) -> Iterator[dict[str, str]]:
    """Start the daemons of a cluster in a folder; yield the variables with which it is found."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name, path=PATH) is None]
    assert not missing, f"{', '.join(missing)} are missing: apt-get install slurm-wlm munge"
    folder = home / "slurm"
    for name in ("state", *(f"spool-{machine}" for machine in MACHINES)):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    for number in range(8):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
    settings = {"host": socket.gethostname(), "user": getpass.getuser(), "cpus": os.cpu_count(), "ports": free_ports(3)}
    (folder / "slurm.conf").write_text(SETTINGS.format(folder=folder, **settings))
    variables = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
    commands = [
        ["munged", "--foreground", "--force", *(f"--{name}={folder}/munge.{end}" for name, end in MUNGE.items())],
        ["slurmctld", "-D", "-c"],
        *(["slurmd", "-D", "-N", machine] for machine in MACHINES),
    ]
    with open(folder / "daemons.log", "w") as log:
        daemons = [
            subprocess.Popen(each, env=os.environ | variables, stdout=log, stderr=log, cwd=folder) for each in commands
        ]
    try:
        wait_for(["sinfo", "--noheader", "--format=%D %t"], "2 idle", variables, folder / "daemons.log")
        yield variables
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(DEADLINE_S)


MUNGE = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}


def free_ports(count: int) -> list[int]:
    """Return ports at which nobody listens."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports


def wait_for(command: list[str], said: str, variables: dict[str, str], log: Path) -> str:
    """Run a command until it says something; return what it says then."""
    end = time.monotonic() + LONGEST_S
    while True:
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
        if re.search(said, done.stdout):
            return done.stdout
        assert time.monotonic() < end, done.stdout + done.stderr + log.read_text()
        time.sleep(0.5)


@pytest.mark.runs("docs/cluster.md", "sh", "sbatch ")
def test_the_script_trains_on_two_machines_of_slurm(home: Path, slurm: dict[str, str]) -> None:
    job = home / "job"
    (job / ".venv" / "bin").mkdir(parents=True)
    (job / ".venv" / "bin" / "trinity").write_text(f'#!/bin/sh\nexec {sys.executable} -m trinity "$@"\n')
    (job / ".venv" / "bin" / "trinity").chmod(0o755)
    (job / ".venv" / "bin" / "activate").write_text(f"export PATH={job}/.venv/bin:$PATH PYTHONPATH={ROOT}\n")
    run = trains(job)
    (job / "run.yaml").write_text(yaml.safe_dump(run.tree))
    (script,) = [code for name, _, code in STEP.findall(page("docs/cluster.md").text) if name == "grpo.sbatch"]
    (job / "grpo.sbatch").write_text(script)
    (line,) = page("docs/cluster.md").lines("sbatch ")
    run_lines([line], job, slurm)
    ended = wait_for(
        ["scontrol", "show", "job", "1"], r"JobState=(?!PENDING|RUNNING|COMPLETING)", slurm, job / "grpo.sbatch"
    )
    (output,) = job.glob("slurm-*.out")
    assert "JobState=COMPLETED" in ended, output.read_text()[-4000:]
    assert re.search(r"joined the Ray cluster at \S+: 2 machines, 16 GPUs", output.read_text())
    assert (run.job / "global_step_2").is_dir()
