"""A run of a few seconds from a YAML file of the test's own, without the quickstart."""

from __future__ import annotations

import copy
import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests import prepared
from tests.metric_names import assert_told
from tests.tiny import tiny_model

PLAIN: dict[str, Any] = {
    "project": "tiny",
    "name": "run",
    "mode": "both",
    "checkpoint_root_dir": "out",
    "model": {"model_path": "model", "max_model_len": 48, "max_prompt_tokens": 24, "max_response_tokens": 8},
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "none", "optimizer": {"lr": 1.0e-3}},
    "buffer": {
        "batch_size": 2,
        "total_steps": 2,
        "explorer_input": {
            "default_workflow_type": "simple_workflow",
            "default_reward_fn_type": "accuracy_reward",
            "taskset": {
                "name": "train",
                "storage_type": "file",
                "path": "train.jsonl",
                "format": {"prompt_key": "question", "response_key": "answer"},
            },
        },
    },
    "explorer": {"runner_per_model": 2, "max_timeout": 60, "max_retry_times": 0, "rollout_model": {"dtype": "float32"}},
    "synchronizer": {"sync_method": "memory", "sync_timeout": 60},
    "trainer": {"save_interval": 1},
}


@dataclass
class Ended:
    """How a process ended."""

    status: int
    output: str
    seconds: float


@dataclass
class TinyRun:
    """A folder with model, data, YAML and plugins; the process runs in it, so that relative paths mean it."""

    folder: Path
    tree: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(PLAIN))
    plugin: str = ""

    def __post_init__(self) -> None:
        tiny_model(self.folder / "model", "llama", seed=1, scale=3.0)
        self.write_rows([{"question": f"{a}+{a + 1}=", "answer": str(2 * a + 1)} for a in range(4)])

    def write_rows(self, rows: list[dict[str, Any]], name: str = "train.jsonl") -> None:
        """Write a dataset."""
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def change(self, **values: Any) -> TinyRun:
        """Set keys, written with `__` between the parts; return the run."""
        for key, value in values.items():
            *parents, last = key.split("__")
            section = self.tree
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = value
        return self

    def start(
        self,
        *extra: str,
        failpoints: str = "",
        environment: Mapping[str, str] | None = None,
        output: Any = None,
        is_real: bool = False,
        words: tuple[str, ...] = ("run", "--config", "run.yaml"),
    ) -> subprocess.Popen[str]:
        """Start `python -m trinity run`, see `tests.prepared.start`."""
        (self.folder / "run.yaml").write_text(yaml.safe_dump(self.tree))
        words = (*words, *extra)
        if self.plugin:
            (self.folder / "plugins").mkdir(exist_ok=True)
            (self.folder / "plugins" / "own.py").write_text(self.plugin)
            words += ("--plugin-dir", "plugins")
        variables = {"TRINITY_FAILPOINTS": failpoints, **(environment or {})}
        return prepared.start(words, cwd=self.folder, environment=variables, output=output, is_real=is_real)

    def finish(self, *extra: str, timeout_s: float = prepared.DEADLINE_S, **how: Any) -> Ended:
        """Run to the end, which must come within `timeout_s`; `how` as of `start`."""
        started = time.monotonic()
        process = self.start(*extra, **how)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate(timeout=30)
            raise AssertionError(f"still alive after {timeout_s:g} s:\n{output[-3000:]}") from None
        assert_told(self.folder, of_plugins=bool(self.plugin or "--plugin-dir" in extra or "plugin_dirs" in self.tree))
        return Ended(process.returncode, output, time.monotonic() - started)

    @property
    def job(self) -> Path:
        """Folder of the job."""
        return self.folder / "out" / "tiny" / "run"

    def lines(self, actor: str) -> list[dict[str, Any]]:
        """Return the metrics lines of an actor."""
        lines = [json.loads(line) for line in (self.job / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["actor"] == actor]
