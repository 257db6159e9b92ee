"""Runs on a real Ray cluster, in processes of their own, whose lines and actors a test can follow."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.plugin_texts import REWARD
from tests.e2e.ray_worker_server import node_args
from tests.e2e.test_algorithms import make_run
from tests.e2e.tiny_run import TinyRun

STEPS = 9
WAIT_S = 300.0
SIDES = ("explorer", "trainer", "synchronizer", "explorer_rollout_model_0")


@contextmanager
def own_cluster(num_cpus: int = 2, *, num_gpus: int = 0) -> Iterator[Any]:
    """Yield a cluster of one machine, which says that it has `num_gpus` GPUs."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    head = node_args(num_cpus=num_cpus, num_gpus=num_gpus, include_dashboard=False)
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()


# A run that is to be interrupted after one more step waits at its gate: with its second step of rollouts, unless the
# first was one that it explored again, so that no checkpoint comes.
GATED = """
import itertools
import pathlib
import time

from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn

REWARDED = itertools.count()


def latest():
    file = pathlib.Path({latest!r})
    return file.read_text() if file.exists() else ""


BEGAN, UNTIL = latest(), []


def may_go_on():
    UNTIL[:] = UNTIL or [time.monotonic() + {patience_s}]
    return pathlib.Path({gate!r}).exists() or (latest() == BEGAN and time.monotonic() > UNTIL[0])


@REWARD_FUNCTIONS.register_module("share_of_digits")
class ShareOfDigits(RewardFn):
    def __call__(self, response, prompt=None, truth=None, **kwargs):
        is_second = next(REWARDED) >= {rollouts}
        while is_second and not may_go_on():
            time.sleep(0.02)
        digits = sum(character.isdigit() for character in response) / max(len(response), 1)
        return {{"digits": digits, "variety": 0.01 * len(set(response))}}
"""


def gated(run: TinyRun) -> Path:
    """Let each start of a run continue by one step, until the returned file is there."""
    gate = run.folder / "go"
    rollouts = run.tree["buffer"]["batch_size"] * run.tree["algorithm"]["repeat_times"]
    latest = str(run.job / "latest_checkpointed_iteration.txt")
    run.plugin = GATED.format(rollouts=rollouts, gate=str(gate), latest=latest, patience_s=10)
    return gate


def steps(folder: Path, **keys: Any) -> TinyRun:
    """Return a deterministic run of `STEPS` steps."""
    folder.mkdir(exist_ok=True)
    run = make_run(folder, {"algorithm_type": "grpo"}).change(buffer__total_steps=STEPS).change(**keys)
    run.plugin = REWARD
    return run


def on_ray(folder: Path, cluster: Any, **keys: Any) -> TinyRun:
    """Return the same run on a cluster, with runners in the explorer's process."""
    place = {"cluster__ray_address": cluster.address, "explorer__runner_isolation": "thread"}
    return steps(folder, cluster__runtime="ray", **place | keys)


class Watched:
    """A run under way: its lines, and the processes of its actors by name. It ends with the `with` block.

    What an actor writes is read from its log file, since Ray passes the last lines of a run on late, or not at all.
    """

    def __init__(self, run: TinyRun, *extra: str, failpoints: str = "") -> None:
        self._run = run
        self._before = {log: log.stat().st_size for log in self._logs()}
        self.process = run.start(*extra, failpoints=failpoints)
        self._printed: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.end()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._printed.extend(iter(self.process.stdout.readline, ""))

    def _logs(self) -> list[Path]:
        return sorted((self._run.job / "log").rglob("*.log"))

    @property
    def output(self) -> str:
        """What the command has printed."""
        return "".join(self._printed)

    @property
    def logged(self) -> str:
        """What its actors and the command itself have written to the log files of the job."""
        return "".join(log.read_bytes()[self._before.get(log, 0) :].decode(errors="replace") for log in self._logs())

    def until(self, pattern: str) -> None:
        """Wait until a line matches, printed or logged."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            has_ended = self.process.poll() is not None
            if re.search(pattern, self.output + self.logged):
                return
            assert not has_ended, f"ended without {pattern!r}:\n{self.output[-4000:]}"
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} within {WAIT_S:g} s:\n{self.output[-4000:]}")

    def until_step(self) -> int:
        """Wait for one more checkpoint, after the lines that name the processes; return its step."""
        found, end = self._step(), time.monotonic() + WAIT_S
        self.until(f"{SIDES[-1]} is process")
        while self._step() == found:
            assert self.process.poll() is None and time.monotonic() < end, self.output[-4000:]
            time.sleep(0.05)
        return self._step()

    def _step(self) -> int:
        latest = self._run.job / "latest_checkpointed_iteration.txt"
        return int(latest.read_text()) if latest.exists() else 0

    def pid(self, name: str) -> int:
        """Return the newest process of an actor, which the log names when it starts."""
        found = re.findall(rf" {name} is process (\d+)", self.logged)
        assert found, f"{name} did not start:\n{self.output}"
        return int(found[-1])

    def end(self) -> int:
        """Wait for the end and read what is left; return the exit status."""
        status = self.process.wait(timeout=WAIT_S)
        self._reader.join(timeout=WAIT_S)
        assert not self._reader.is_alive(), "a process that the run left holds its output"
        return status
