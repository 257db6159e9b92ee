"""A quickstart made short: both stages, several checkpoints, evaluations, a few seconds."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import prepared
from tests.metric_names import assert_told
from tests.prepared import ROOT
from trinity.quickstart.folder import prepare

SHORT = (
    "stages[0].trainer.total_steps=5",
    "stages[0].trainer.save_interval=2",
    "stages[0].buffer.train_batch_size=16",
    "stages[1].buffer.total_steps=4",
    "stages[1].buffer.batch_size=4",
    "stages[1].buffer.train_batch_size=16",
    "stages[1].trainer.save_interval=3",
    "stages[1].explorer.eval_interval=2",
    "stages[1].explorer.runner_per_model=4",
    # So short an imitation earns no reward: entropy and KL make every row count and every update move.
    "stages[1].algorithm.kl_loss_fn=k2",
    "stages[1].algorithm.entropy_loss_fn_args.entropy_coef=0.01",
)
NOT_COMPARED = ("time", "perf")


@dataclass
class ShortRun:
    """A prepared folder and the way to run it in a process of its own."""

    folder: Path
    overrides: tuple[str, ...] = SHORT
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, *, seed: int = 7, test_rows: int = 16, **fields: Any) -> ShortRun:
        """Write data, model and YAML into `folder`; keep `test_rows` held-out problems."""
        prepare(folder, seed=seed)
        test = folder / "data" / "test.jsonl"
        test.write_text("".join(test.read_text().splitlines(keepends=True)[:test_rows]))
        return cls(folder, **fields)

    def start(self, *extra: str, failpoints: str = "", is_real: bool = False) -> subprocess.Popen[str]:
        """Start `trinity run`, see `tests.prepared.start`."""
        words = ["run", "--config", str(self.folder / "quickstart.yaml")]
        for override in self.overrides:
            words += ["--set", override]
        variables = {"TRINITY_FAILPOINTS": failpoints, **self.environment}
        return prepared.start([*words, *extra], cwd=ROOT, environment=variables, is_real=is_real)

    def finish(
        self, *extra: str, failpoints: str = "", timeout_s: float = 180, is_real: bool = False
    ) -> tuple[int, str]:
        """Run to the end; return exit status and output."""
        process = self.start(*extra, failpoints=failpoints, is_real=is_real)
        output, _ = process.communicate(timeout=timeout_s)
        assert_told(self.folder)
        return process.returncode, output

    def kill_after(self, seconds: float) -> bool:
        """Run and kill the whole process group with SIGKILL after `seconds`; return false if it ended before."""
        process = self.start()
        try:
            output, _ = process.communicate(timeout=seconds)
            assert process.returncode == 0, output
            return False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)
            return True

    def job(self, stage: str) -> Path:
        """Return the job folder of `stage`."""
        return self.folder / "checkpoints" / "quickstart" / "addition" / stage

    def outcome(self) -> dict[str, Any]:
        """Return what must not depend on interruptions: weight hashes and all metrics but times."""
        return {stage: self._stage_outcome(stage) for stage in ("sft_warmup", "rft")}

    def _stage_outcome(self, stage: str) -> dict[str, Any]:
        job = self.job(stage)
        step = max(int(p.name.rsplit("_", 1)[1]) for p in job.glob("global_step_*"))
        weights = job / f"global_step_{step}" / "actor" / "huggingface" / "model.safetensors"
        return {
            "step": step,
            "weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
            "metrics": comparable_metrics(job),
        }


def comparable_metrics(job: Path) -> list[tuple[str, int, dict[str, Any]]]:
    """Return actor, step and values of every metrics line, without times, in an order that ignores interleaving."""
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    kept = [
        (
            line["actor"],
            line["seq"],
            {k: v for k, v in line.items() if k != "seq" and not set(k.split("/")) & set(NOT_COMPARED)},
        )
        for line in lines
    ]
    return sorted(kept, key=lambda item: item[:2])


def wall_seconds(run: ShortRun) -> float:
    """Return how long one uninterrupted run takes."""
    started = time.monotonic()
    status, output = run.finish()
    assert status == 0, output
    return time.monotonic() - started
