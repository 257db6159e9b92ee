"""A Ray cluster over the machines of a job of Aliyun PAI-DLC.

Each machine of the job runs the same command, with `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from trinity.common.errors import EnvironmentProblem
from trinity.utils.log import get_logger

JOIN_TIMEOUT_S = 600.0
JOIN_POLL_S = 5.0
STATUS_TIMEOUT_S = 60.0

logger = get_logger("dlc")


def get_dlc_env_vars() -> dict[str, int | str]:
    """Return the variables of the job: rank, size, address and port.

    Raises:
        ValueError: one of the variables is not set, or a number is none.
    """
    found: dict[str, int | str] = {}
    for name, kind in (("RANK", int), ("WORLD_SIZE", int), ("MASTER_ADDR", str), ("MASTER_PORT", str)):
        text = os.environ.get(name, "")
        try:
            found[name] = kind(text)
        except ValueError:
            text = ""
        if not text:
            raise ValueError(
                f"environment variable {name} of a DLC job must be {'a number' if kind is int else 'set'}, got "
                f"{os.environ.get(name)!r}; start this command as a job of several machines, or without --dlc"
            )
    return found


def is_running() -> bool:
    """Return whether a Ray cluster answers on this machine."""
    done = subprocess.run([_ray(), "status"], capture_output=True, timeout=STATUS_TIMEOUT_S, check=False)
    return done.returncode == 0


def setup_ray_cluster(namespace: str) -> str:
    """Start this machine's part of the cluster; return the cluster's address.

    On the first machine this is `host:port`, and `auto` where a cluster runs already; `cluster.node_num` says for how
    many machines a run waits. Every other machine serves the cluster until that ends, and the process ends with it.

    Args:
        namespace: of the run's actors.

    Raises:
        ValueError: a variable of the job is not set.
        EnvironmentProblem: the cluster cannot be started, or joined in ten minutes (E3415).
    """
    job = get_dlc_env_vars()
    if is_running():
        return "auto"
    address = f"{job['MASTER_ADDR']}:{job['MASTER_PORT']}"
    if job["RANK"] != 0:
        _serve(address)
    logger.info("starting the Ray cluster %s for %s", address, namespace)
    _start("--head", f"--port={job['MASTER_PORT']}", f"--node-ip-address={job['MASTER_ADDR']}")
    return address


def stop_ray_cluster(namespace: str) -> None:
    """Stop this machine's part of the cluster.

    The other machines end with the first.
    """
    logger.info("stopping the Ray cluster of %s", namespace)
    subprocess.run([_ray(), "stop"], capture_output=True, timeout=STATUS_TIMEOUT_S, check=False)


def _serve(address: str) -> NoReturn:
    """Join a cluster, and end this process when it has ended."""
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while True:
        try:
            _start(f"--address={address}")
            break
        except EnvironmentProblem:
            if time.monotonic() > deadline:
                raise
            time.sleep(JOIN_POLL_S)
    while is_running():
        time.sleep(JOIN_POLL_S)
    sys.exit(0)


def _start(*words: str) -> None:
    done = subprocess.run(
        [_ray(), "start", *words], capture_output=True, text=True, check=False, timeout=JOIN_TIMEOUT_S
    )
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing was said"]
        raise EnvironmentProblem(f"`ray start {' '.join(words)}` failed: {told[0]}; see its logs", code="E3415")


def _ray() -> str:
    """Return the command of Ray in this environment."""
    own = Path(sys.executable).with_name("ray")
    found = str(own) if own.exists() else shutil.which("ray")
    if found is None:
        raise EnvironmentProblem("a DLC job needs Ray; install it: pip install ray", code="E3415")
    return found
