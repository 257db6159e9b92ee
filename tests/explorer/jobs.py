"""A whole explorer in a job folder, and beside it what a trainer does: read, commit, publish other weights."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.explorer.rollouts import Rollouts
from trinity.buffer.store import ExperienceStore
from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.common.models import create_inference_model
from trinity.explorer.assembly import experience_buffer, store_scope
from trinity.explorer.explorer import Explorer
from trinity.explorer.summary import ExploreSummary
from trinity.monitor.monitor import Monitor
from trinity.synchronizer.local import LocalSynchronizer
from trinity.synchronizer.publisher import Publisher
from trinity.synchronizer.schedule import sync_schedule
from trinity.synchronizer.transport import MemoryTransport

QUESTIONS = ["1+1=", "12+34=", "abc", "9*9=", "hello", "x", "5-4=?", "zz"]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write JSON lines; return the path as text."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@dataclass
class Job:
    """One run of an explorer.

    Attributes:
        folder: of the job.
        rollouts: owner of the tiny model.
        rows: of the taskset.
        held_out: rows of the evaluation; none: the first two of `rows`.
        workflow: of the taskset.
        steps: that the trainer trains; None: until the explorer is finished.
        train_batch_size: rollouts that the trainer asks for.
        publish_s: seconds between the end of a training step and its weights.
        sections: further configuration.
    """

    folder: Path
    rollouts: Rollouts
    rows: list[dict[str, Any]] = field(default_factory=lambda: [{"question": q} for q in QUESTIONS])
    held_out: list[dict[str, Any]] = field(default_factory=list)
    workflow: str = "test_chatting"
    steps: int | None = None
    train_batch_size: int = 4
    publish_s: float = 0.0
    sections: dict[str, Any] = field(default_factory=dict)
    seen: list[list[Experience]] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)

    def config(self) -> Config:
        """Return the configuration: two tasks a step, two runs a task, two turns a run; evaluation every 2 steps."""
        self.folder.mkdir(parents=True, exist_ok=True)
        shared = {"default_workflow_type": self.workflow, "format": {"prompt_key": "question"}}
        taskset = {"name": "train", "path": write_rows(self.folder / "train.jsonl", self.rows), "repeat_times": 2}
        held_out = write_rows(self.folder / "eval.jsonl", self.held_out or self.rows[:2])
        evaluation = {"name": "held_out", "path": held_out, "repeat_times": 2}
        buffer = {
            "batch_size": 2,
            "explorer_input": {"taskset": taskset | shared, "eval_tasksets": [evaluation | shared]},
            "trainer_input": {"experience_buffer": {"name": "exps"}},
        }
        explorer = {
            "rollout_model": {"dtype": "float32", "seed": 3},
            "runner_per_model": 3,
            "max_timeout": 30,
            "max_retry_times": 0,
            "eval_interval": 2,
        }
        config = {
            "buffer": buffer | self.sections.get("buffer", {}),
            "explorer": explorer | self.sections.get("explorer", {}),
            "algorithm": {"repeat_times": 2, "advantage_fn": "grpo"},
            "checkpoint_job_dir": str(self.folder),
            "synchronizer": {"sync_timeout": 20} | self.sections.get("synchronizer", {}),
            "deterministic": self.sections.get("deterministic", True),
        }
        rest = {key: value for key, value in self.sections.items() if key not in config}
        return self.rollouts.config(**config, **rest)

    def run_again(self, kept: int) -> ExploreSummary:
        """Run to the end from the checkpoint of training step `kept + 1`, as if nothing had come after it."""
        state = self.snapshots[kept]
        checkpoint = self.folder / "checkpoint"
        checkpoint.mkdir()
        (checkpoint / "explorer.json").write_text(json.dumps(state))
        self.seen, self.snapshots = self.seen[: state["model_version"]], []
        return self.run(resume=checkpoint)

    def run(self, resume: Path | None = None) -> ExploreSummary:
        """Run explorer and trainer to their end; return the explorer's summary."""
        return asyncio.run(self._run(resume))

    async def _run(self, resume: Path | None) -> ExploreSummary:
        config = self.config()
        synchronizer = LocalSynchronizer(sync_schedule(config), timeout_s=config.synchronizer.sync_timeout)
        monitor = Monitor(self.folder, project="p", name="n", actor="explorer", monitor_type=None)
        engine = create_inference_model(config)
        with ExperienceStore(f"sqlite:///{self.folder}/experience.db") as store:
            explorer = Explorer(
                config, model=engine, store=store, synchronizer=synchronizer, monitor=monitor, resume=resume
            )
            await engine.prepare()
            if resume is not None:
                version = explorer.state.model_version
                if version:
                    await engine.update_weights(self.weights(version), version=version)
                await synchronizer.restore(version, explorer.state.as_json(), tickets=[], explorer="explorer")
            try:
                await explorer.prepare()
                exploring = asyncio.create_task(explorer.explore())
                training = asyncio.create_task(self._train(store, synchronizer, explorer))
                await asyncio.wait({exploring, training}, return_when=asyncio.FIRST_EXCEPTION)
                training.cancel()
                await asyncio.gather(training, return_exceptions=True)
                return await exploring
            finally:
                await explorer.close()
                await engine.shutdown()
                monitor.close()

    async def _train(self, store: ExperienceStore, synchronizer: LocalSynchronizer, explorer: Explorer) -> None:
        config = explorer.config
        step, publisher = explorer.state.model_version, Publisher(synchronizer, MemoryTransport())
        token = store.open_consumer(experience_buffer(config), "trainer", cut=step, **store_scope(config))
        while self.steps is None or step < self.steps:
            batch = await asyncio.to_thread(
                store.read_batch, token, self.train_batch_size, timeout_s=20, trained_version=step
            )
            if batch.is_closed:
                break
            step += 1
            store.commit_step(token, step, [e.eid.uid for e in batch.experiences])
            self.seen.append(batch.experiences)
            state = await synchronizer.explorer_state(explorer="explorer")
            assert state is not None
            self.snapshots.append(state)
            await asyncio.sleep(self.publish_s)
            await publisher.publish(step, self.weights(step))
        await synchronizer.finish_trainer()

    def weights(self, version: int) -> dict[str, Tensor]:
        """Return the weights of `version`: those of the file, changed a little more by each."""
        weights = load_file(self.rollouts.model_path / "model.safetensors")
        return {name: tensor * (1 + 0.02 * version) for name, tensor in weights.items()}

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics lines of the explorer without times, speeds and the order of writing."""
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return [
            {k: v for k, v in line.items() if k != "seq" and "time" not in k.split("/") and not k.startswith("perf/")}
            for line in lines
        ]

    def store_rows(self) -> list[tuple[Any, ...]]:
        """Return id, version, tokens and advantage of every experience that the trainer saw."""
        return [
            (e.eid.uid, e.info["model_version"], e.tokens.tolist(), e.advantages.tolist())
            for batch in self.seen
            for e in batch
        ]
