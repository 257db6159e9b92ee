"""SIGKILL at random places of random kinds of runs, and what their tables must say at the end.

`python -m tests.faults.kills --kills 200` runs as many as are asked for, and prints a table.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.e2e.parts import Parts
from tests.e2e.tiny_run import PLAIN
from tests.prepared import DEADLINE_S
from trinity.launch.process import prepare_process
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.utils import failpoints

STEPS, KILLS_A_JOB = 6, 8
STREAMED = "update_in_flight"
# Of a broadcast, of what these runs do not do, or of file systems that cannot exchange two names.
NOT_REACHED = {"ckpt.while_replacing", "ckpt.retention", "engine.before_weights"}
POINTS = [
    name
    for name in failpoints.NAMES
    if name not in NOT_REACHED and not name.startswith(("sync.after_bucket", "convert.", "remote."))
]
PLUGIN = '''
"""Rollouts of a random number of turns; the reward says how many, and which attempt they are of."""

import random

from trinity.common.workflows import WORKFLOWS, Workflow


@WORKFLOWS.register_module("random_turns")
class RandomTurns(Workflow):
    def run(self):
        arguments, question = self.task.workflow_args, self.task.raw_task["question"]
        draw = random.Random(question) if arguments["is_repeatable"] else random.SystemRandom()
        number, attempt = draw.randint(1, arguments["max_turns"]), draw.randrange(1 << 16) / (1 << 17)
        turns = []
        for turn in range(number):
            (answer,) = self.model.chat([{"role": "user", "content": question + "?" * turn}], n=1)
            answer.reward = number + attempt
            answer.eid.step = turn
            turns.append(answer)
        return turns
'''
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.faults.kill_server"])

Row = tuple[object, ...]


@dataclass(frozen=True)
class Kind:
    """What is run.

    Attributes:
        mode: `both`, or `apart`: an explorer and a trainer, of which either is killed.
        max_turns: experiences of a rollout, at most.
        style: `synchronizer.sync_style`, or `STREAMED`: fully_async, whose tasks begin one by one.
        is_deterministic: `deterministic`.
    """

    mode: str
    max_turns: int
    style: str
    is_deterministic: bool

    def __str__(self) -> str:
        turns = "1 turn" if self.max_turns == 1 else f"1..{self.max_turns} turns"
        return f"{self.mode}, {turns}, {self.style}, {'' if self.is_deterministic else 'not '}deterministic"


KINDS = [
    Kind(mode, turns, style, deterministic)
    for mode, turns, style, deterministic in itertools.product(
        ("both", "apart"), (1, 3), ("fixed", "fully_async"), (False, True)
    )
] + [Kind(mode, 3, STREAMED, is_deterministic=False) for mode in ("both", "apart")]


@dataclass
class Job:
    """A run that is killed again and again.

    Attributes:
        kind: what is run.
        parts: its folder and files.
        draw: says where the kills are.
        kills: how many were done.
        seen: what the log held after each kill: identity and reward.
    """

    kind: Kind
    parts: Parts
    draw: random.Random
    kills: int = 0
    seen: set[Row] = field(default_factory=set)

    @classmethod
    def make(cls, kind: Kind, folder: Path, *, seed: int) -> Job:
        """Write model, data, plugin and configuration into `folder`."""
        parts = Parts(folder)
        (parts.plugin_dir / "random_turns.py").write_text(PLUGIN)
        arguments = {"max_turns": kind.max_turns, "is_repeatable": kind.is_deterministic}
        trees = {"both": _merged(parts)} if kind.mode == "both" else parts.trees
        for name, tree in trees.items():
            tree["deterministic"] = kind.is_deterministic
            tree["trainer"] = {"save_interval": 2}
            tree["buffer"]["train_batch_size"] = 4
            taskset = tree["buffer"]["explorer_input"]["taskset"]
            taskset |= {"default_workflow_type": "random_turns", "workflow_args": arguments}
            if name != "trainer":
                tree["buffer"]["total_steps"] = STEPS
            tree["synchronizer"]["sync_timeout"] = 300
            if kind.style != "fixed":
                tree["synchronizer"] |= {"sync_style": "fully_async"}
            if kind.style == STREAMED:
                tree["synchronizer"] |= {"update_in_flight": True, "max_staleness": 2}
        parts.trees = trees
        return cls(kind, parts, random.Random(seed))

    def start(self, component: str, fail: str) -> ForkServerProcess:
        """Start a component in a process of its own."""
        file, folder = self.parts.write(component), self.parts.folder
        process = _processes.Process(target=work, args=(file, self.parts.plugin_dir, folder / f"{component}.out", fail))
        process.start()
        return process

    def run(self, kills: int, *, timeout_s: float) -> None:
        """Kill the job `kills` times, or until it is done; then let it end, and look at its tables.

        Raises:
            AssertionError: a component failed or did not end, or the tables are not as they must be.
        """
        names = ["both"] if self.kind.mode == "both" else ["explorer", "trainer"]
        deadline = time.monotonic() + timeout_s
        alive: dict[str, ForkServerProcess] = {}
        done: set[str] = set()
        try:
            while len(done) < len(names):
                for name in names:
                    if name not in alive and name not in done:
                        alive[name] = self.start(name, self._failpoint(kills))
                if self.kills < kills:
                    self._kill(self.draw.choice(sorted(alive)), alive, deadline)
                else:
                    alive[min(alive)].join(0.2)
                self._reap(alive, done)
                assert time.monotonic() < deadline, f"not done after {timeout_s:g} s:\n{self.output()}"
        finally:
            for process in alive.values():
                process.kill()
        self.check()

    def _kill(self, name: str, alive: dict[str, ForkServerProcess], deadline: float) -> None:
        """Kill a component at an instant: while it starts, some steps of either side later, or when the other ends."""
        victim, others = alive[name], [process for other, process in alive.items() if other != name]
        target = self.progress() + self.draw.choice((0, 0, 1, 2, 3, 5))
        victim.join(self.draw.uniform(0.0, 1.0))
        while victim.exitcode is None and self.progress() < target and time.monotonic() < deadline:
            if any(process.exitcode is not None for process in others):
                break  # the victim may wait for it, and it is not started again before this returns
            victim.join(0.02)
        victim.join(self.draw.uniform(0.0, 0.2))
        victim.kill()
        victim.join(DEADLINE_S)

    def progress(self) -> int:
        """Return the explore steps in the log and the training steps in the ledger."""
        explored = self.rows("select coalesce(sum(finished_step), 0) from producer")
        trained = self.rows("select coalesce(max(step), 0) from train_step")
        return sum(int(str(row[0])) for row in (*explored, *trained))

    def _failpoint(self, kills: int) -> str:
        """Return a place at which the next process kills itself; half of them live until they are killed."""
        if self.kills >= kills or self.draw.random() < 0.5:
            return ""
        return f"{self.draw.choice(POINTS)}=kill@{self.draw.randint(1, 4)}"

    def _reap(self, alive: dict[str, ForkServerProcess], done: set[str]) -> None:
        for name, process in list(alive.items()):
            if process.exitcode is None:
                continue
            del alive[name]
            if process.exitcode == 0:
                done.add(name)
                continue
            assert process.exitcode == -signal.SIGKILL, f"{name} ended with {process.exitcode}:\n{self.output()}"
            self.kills += 1
            found = set(self.rows("select uid, reward from experience"))
            assert found >= self.seen, f"lost from the log: {sorted(self.seen - found, key=str)}"
            self.seen = found

    def output(self) -> str:
        """Return the last lines that the components wrote."""
        files = sorted(self.parts.folder.glob("*.out"))
        return f"{self.kind} in {self.parts.folder}\n" + "\n".join(file.read_text()[-3000:] for file in files)

    def rows(self, query: str) -> list[Row]:
        """Return the rows of a query of the store; none before there is one."""
        file = self.parts.job / "buffer" / "experience.db"
        if not file.exists():
            return []
        connection = sqlite3.connect(file, timeout=60)
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error), str(error)  # the first process was killed before it made them
            return []
        finally:
            connection.close()

    def check(self) -> None:
        """Hold the tables against what must be: nothing lost, nothing trained twice, no rollout mixed or divided.

        Raises:
            AssertionError: they are not so.
        """
        where = f"after {self.kills} kills: {self.output()}"
        states = Counter(dict(self.rows("select state, count(*) from experience group by 1")))  # type: ignore[arg-type]
        steps = self.rows("select distinct explore_step from experience order by 1")
        assert steps == [(step,) for step in range(1, STEPS + 1)], where
        assert set(states) == {"trained"}, f"{dict(states)} {where}"
        assert set(self.rows("select uid, reward from experience")) >= self.seen, where
        rollouts = self.rows(
            "select explore_step, task_id, run_id, count(*), count(distinct reward), cast(min(reward) as int) "
            "from experience group by 1, 2, 3"
        )
        assert len(rollouts) == STEPS * 4, where
        for *name, turns, attempts, wanted in rollouts:
            assert (turns, attempts) == (wanted, 1), f"rollout {name} has {turns} turns of {attempts} attempts {where}"
        used = self.rows("select count(*), count(distinct uid) from step_exp")
        assert used == [(states["trained"], states["trained"])], f"{used} {where}"
        divided = "from step_exp s join experience e on e.uid = s.uid group by e.task_id, e.run_id"
        assert set(self.rows(f"select count(distinct s.step) {divided}")) == {(1,)}, where
        assert self.rows("select count(*) from experience where use_count != 1") == [(0,)], where
        # Every run has issued four rollouts a step, and all of them were trained: no kill has counted one twice.
        newest = "select max(step) from fate n where n.side = f.side and n.owner = f.owner"
        fates = self.rows(f"select fate, sum(rollouts) from fate f where step = ({newest}) group by fate order by fate")
        assert fates == [("issued", len(rollouts)), ("trained", len(rollouts))], f"{fates} {where}"


def _merged(parts: Parts) -> dict[str, object]:
    """Return the configuration of one process."""
    tree = parts.trees["explorer"] | {"mode": "both"}
    tree["synchronizer"] = dict(PLAIN["synchronizer"])
    tree["explorer"] = dict(PLAIN["explorer"])
    return tree


def work(file: Path, plugins: Path, output: Path, fail: str) -> None:
    """Run a component in this process, which ends with its exit status."""
    status = 1
    with open(output, "a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(file.parent)
    failpoints.configure(fail)
    try:
        options = RunOptions(plugin_dirs=(plugins,))
        status = int(run_plan(plan_run(file, options), options).exit_code)
    except BaseException:  # noqa: BLE001  whatever it is, the parent reads it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def sweep(
    folder: Path, kills: int, *, seed: int, kinds: Sequence[Kind] = KINDS, timeout_s: float = 600.0
) -> Iterator[Job]:
    """Kill jobs of `kinds` in turn until there were `kills` in all; yield each job once its tables were looked at."""
    done = 0
    for number in itertools.count():
        if done >= kills:
            return
        job = Job.make(kinds[number % len(kinds)], folder / f"job{number}", seed=seed + number)
        job.run(min(KILLS_A_JOB, kills - done), timeout_s=timeout_s)
        done += job.kills
        yield job


def main() -> None:
    """Run the sweep from the command line; a job that fails ends it with status 1, and its folder is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="words that the names of the kinds have")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare_process("", deterministic=True)  # for the server of processes, which has used torch before a run begins
    folder = Path(tempfile.mkdtemp(prefix="kills"))
    total: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    kinds = [kind for kind in KINDS if all(word in str(kind) for word in arguments.only)]
    for job in sweep(folder, arguments.kills, seed=arguments.seed, kinds=kinds):
        total[str(job.kind)] += job.kills
        rows[str(job.kind)] += len(job.rows("select uid from experience"))
        tell(f"{sum(total.values()):4} kills: {job.kind}: 0 lost, 0 trained twice")
    for kind in sorted(total):
        tell(f"{kind:45} {total[kind]:4} kills {rows[kind]:6} experiences")
    tell(f"{sum(total.values())} kills, {sum(rows.values())} experiences: 0 lost, 0 trained twice")


def tell(text: str) -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
