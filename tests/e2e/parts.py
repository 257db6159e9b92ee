"""A run in parts: explorers and a trainer with a YAML file each, in threads of this process or in processes."""

from __future__ import annotations

import copy
import json
import sqlite3
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests import prepared
from tests.e2e.plugin_texts import REWARD
from tests.e2e.tiny_run import PLAIN, TinyRun
from tests.prepared import DEADLINE_S
from trinity.launch.run import RunOptions, RunResult, plan_run, run_plan


@dataclass
class Parts:
    """A folder with a YAML file a component.

    Attributes:
        folder: where they are and run.
        plugins: folder of the reward function `share_of_digits`; None: one of its own, for processes of their own.
        trees: contents of the files by name of the component.
    """

    folder: Path
    plugins: Path | None = None
    trees: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        run = TinyRun(self.folder)
        run.write_rows([{"question": f"{a}+{a + 2}=", "answer": str(2 * a + 2)} for a in range(4)], "new.jsonl")
        self.plugin_dir = self.plugins or self.folder / "plugins"
        if self.plugins is None:
            self.plugin_dir.mkdir(exist_ok=True)
            (self.plugin_dir / "share_of_digits.py").write_text(REWARD)
        common = copy.deepcopy(PLAIN)
        common["checkpoint_root_dir"] = str(self.folder / "out")
        common["model"]["model_path"] = str(self.folder / "model")
        common["synchronizer"] = {"sync_method": "checkpoint", "sync_interval": 2, "sync_timeout": 60}
        common["buffer"]["trainer_input"] = {"experience_buffer": {"name": "exps", "storage_type": "queue"}}
        common["buffer"]["trainer_input"]["experience_buffer"]["max_read_timeout"] = 60
        common["buffer"]["explorer_input"]["default_reward_fn_type"] = "share_of_digits"
        common["buffer"]["explorer_input"]["taskset"]["path"] = str(self.folder / "train.jsonl")
        del common["buffer"]["total_steps"]
        trainer = copy.deepcopy(common) | {"mode": "train", "trainer": {"save_interval": 2}}
        trainer["buffer"]["train_batch_size"] = 4
        del trainer["explorer"]
        self.trees["trainer"] = trainer
        del common["trainer"]
        for name, rows in (("explorer", "train.jsonl"), ("explorer_new", "new.jsonl")):
            tree = copy.deepcopy(common) | {"mode": "explore"}
            tree["explorer"]["name"] = name
            tree["buffer"]["total_steps"] = 8
            tree["buffer"]["explorer_input"]["taskset"]["path"] = str(self.folder / rows)
            self.trees[name] = tree

    def write(self, component: str) -> Path:
        """Write the YAML file of a component; return it."""
        path = self.folder / f"{component}.yaml"
        path.write_text(yaml.safe_dump(self.trees[component]))
        return path

    def run(self, component: str, *overrides: str, accept: tuple[str, ...] = ()) -> RunResult:
        """Run a component in this thread, with the keys `accept` changed since the last time."""
        options = RunOptions(plugin_dirs=(self.plugin_dir,), overrides=overrides, accepted_changes=accept)
        return run_plan(plan_run(self.write(component), options), options)

    def run_together(self, *components: str) -> dict[str, RunResult]:
        """Run components in a thread each; return their results, or raise the first failure."""
        with ThreadPoolExecutor(len(components)) as pool:
            ends: dict[str, Future[RunResult]] = {name: pool.submit(self.run, name) for name in components}
            return {name: end.result(timeout=DEADLINE_S) for name, end in ends.items()}

    def start(self, component: str, *extra: str, failpoints: str = "") -> subprocess.Popen[str]:
        """Start a component in a process of its own; its output goes to `<component>.out`."""
        words = ["run", "--config", str(self.write(component)), *extra, "--plugin-dir", str(self.plugin_dir)]
        variables = {"TRINITY_FAILPOINTS": failpoints}
        with open(self.folder / f"{component}.out", "a") as out:
            return prepared.start(words, cwd=self.folder, environment=variables, output=out)

    def output(self, component: str) -> str:
        """Return what the processes of a component have printed."""
        return (self.folder / f"{component}.out").read_text()

    @property
    def job(self) -> Path:
        """Folder of the job."""
        return self.folder / "out" / "tiny" / "run"

    def lines(self, actor: str) -> list[dict[str, Any]]:
        """Return the metrics lines of an actor."""
        lines = [json.loads(line) for line in (self.job / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["actor"] == actor]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the experience store."""
        with sqlite3.connect(self.job / "buffer" / "experience.db") as connection:
            return connection.execute(statement).fetchall()
