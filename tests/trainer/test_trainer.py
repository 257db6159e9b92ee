"""The training loop with a real store, synchronizer and monitor: resume to the bit, checkpoints, ends."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.conftest import make_experiences
from trinity.buffer.store import ExperienceStore
from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config
from trinity.common.errors import CheckpointError, StarvedError
from trinity.monitor.monitor import Monitor
from trinity.runtime.local import LocalRuntime
from trinity.synchronizer.local import LocalSynchronizer
from trinity.synchronizer.schedule import sync_schedule
from trinity.trainer.backend import LocalBackend
from trinity.trainer.state import read_served_weights, read_trainer_state
from trinity.trainer.summary import TrainSummary
from trinity.trainer.trainer import Trainer
from trinity.utils import failpoints

Maker = Callable[..., Config]
EXCLUDED = ("time", "seq", "time/", "perf/")


class Run:
    """The parts of one process of a run, over the files of a job folder."""

    def __init__(self, config: Config, *, resume: bool = False) -> None:
        self.config = config
        self.job = Path(config.checkpoint_job_dir)
        self.job.mkdir(parents=True, exist_ok=True)
        self.store = ExperienceStore(f"sqlite:///{self.job / 'experience.db'}").open()
        self.synchronizer = LocalSynchronizer(sync_schedule(config), timeout_s=10.0)
        self.monitor = Monitor(self.job, project="p", name="n", actor="trainer", monitor_type=None)
        self.runtime = LocalRuntime()
        self.trainer = Trainer(
            config,
            runtime=self.runtime,
            store=self.store,
            synchronizer=self.synchronizer,
            monitor=self.monitor,
            resume=CheckpointStore(self.job).latest() if resume else None,
        )

    def explore(self, steps: range, *, close: bool = True) -> None:
        """Append the experiences of explore steps, 8 each."""
        scope = {"run": "p/n", "stage": ""}
        self.store.open_producer("experience_buffer", "explorer", **scope)
        for step in steps:
            self.store.append(
                "experience_buffer", make_experiences(step, version=0), producer="explorer", explore_step=step, **scope
            )
        if close:
            self.store.close_producer("experience_buffer", "explorer", **scope)

    def train(self, before: Callable[[Run], None] | None = None) -> TrainSummary:
        """Prepare, train and close; return the summary."""

        async def work() -> TrainSummary:
            try:
                await self.trainer.prepare()
                if before is not None:
                    before(self)
                return await self.trainer.train()
            finally:
                await self.trainer.close()
                await self.runtime.close()
                self.monitor.close()
                self.store.close()

        return asyncio.run(work())

    def lines(self) -> list[dict[str, Any]]:
        """Return the logged metrics without those that depend on time."""
        rows = [json.loads(line) for line in (self.job / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in row.items() if k != "time" and not k.startswith(("time/", "perf/"))} for row in rows]


def tokens_so_far(run: Run) -> list[float]:
    """Return `perf/trained_tokens` of each step, which adds up what each of them trained."""
    rows = [json.loads(line) for line in (run.job / "metrics.jsonl").read_text().splitlines()]
    totals = [row["perf/trained_tokens"] for row in rows]
    assert totals == list(itertools.accumulate(row["perf/total_num_tokens"] for row in rows))
    return totals


def live_weights(run: Run) -> Mapping[str, Tensor]:
    """Return the weights of a run's only worker, which the next step changes."""
    assert isinstance(run.trainer.backend, LocalBackend)
    return run.trainer.backend.worker.weights()


def final_state(run: Run) -> dict[str, Tensor]:
    """Return weights and optimizer moments after a run."""
    assert isinstance(run.trainer.backend, LocalBackend)
    backend = run.trainer.backend.worker
    moments = {f"{i}.{k}": v for i, state in enumerate(backend.optimizer.state.values()) for k, v in state.items()}
    return {name: tensor.clone() for name, tensor in (dict(backend.weights()) | moments).items()}


def assert_equal_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Assert that two sets of tensors agree in every bit."""
    assert first.keys() == second.keys() and len(first) > 20
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def _variant(make_config: Maker, tmp_path: Path, kind: str, folder: str, **extra: Any) -> Config:
    job = {"checkpoint_job_dir": str(tmp_path / folder)}
    schedule = {"optimizer": {"lr": 1e-2, "lr_scheduler_type": "linear", "lr_warmup_steps": 2}}
    if kind == "grpo":
        tree = {"trainer_config": {"actor_rollout_ref": {"actor": {"shuffle": True, "ppo_mini_batch_size": 3}}}}
        algorithm = {"kl_loss_fn": "k3", "kl_loss_fn_args": {"kl_coef": 0.05}, **schedule}
        return make_config(algorithm=algorithm, trainer={"total_steps": 6, **tree, **extra}, **job)
    buffer = {"trainer_input": {"experience_buffer": _dataset(tmp_path)}}
    algorithm = {"algorithm_type": "sft", "kl_loss_fn": None, **schedule}
    return make_config(algorithm=algorithm, buffer=buffer, trainer={"total_steps": 6, **extra}, **job)


def _dataset(tmp_path: Path) -> dict[str, Any]:
    form = {"prompt_type": "plaintext", "prompt_key": "question", "response_key": "answer"}
    return {"name": "d", "storage_type": "file", "path": str(tmp_path / "demonstrations.jsonl"), "format": form}


def _explore(kind: str) -> Callable[[Run], None] | None:
    return (lambda run: run.explore(range(1, 7))) if kind == "grpo" else None


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_resumed_run_equals_the_uninterrupted_one(
    make_config: Maker, tmp_path: Path, demonstrations: Path, kind: str
) -> None:
    whole = Run(_variant(make_config, tmp_path, kind, "whole"))
    assert whole.train(_explore(kind)).step == 6

    config = _variant(make_config, tmp_path, kind, "halves", save_interval=3)
    failpoints.configure("train.before_step=raise@5")
    first = Run(config)
    with pytest.raises(RuntimeError, match="failpoint train.before_step"):
        first.train(_explore(kind))
    failpoints.configure("")
    assert CheckpointStore(first.job).steps() == [3]
    torch.manual_seed(12345)
    second = Run(config, resume=True)
    summary = second.train()
    assert summary.step == 6 and second.trainer.resume == second.job / "global_step_3"
    assert_equal_bits(final_state(whole), final_state(second))
    assert whole.lines() == second.lines() and len(second.lines()) == 6
    assert tokens_so_far(whole) == tokens_so_far(second)


def test_ledger_holds_every_step_and_loses_nothing(make_config: Maker, tmp_path: Path) -> None:
    run = Run(make_config(trainer={"total_steps": 6, "save_interval": 2, "max_checkpoints_to_keep": 2}))
    run.train(lambda r: r.explore(range(1, 7)))
    run.store.open()
    assert run.store.counts("experience_buffer", "p/n") == {"ready": 0, "claimed": 0, "trained": 48, "dropped": {}}
    token = run.trainer._source.token
    assert run.store.step_uids(token, 3) == [exp.eid.uid for exp in make_experiences(3)]
    run.store.close()
    assert CheckpointStore(run.job).steps() == [4, 6]


def test_training_ends_with_the_experiences(make_config: Maker) -> None:
    run = Run(make_config(buffer={"total_steps": None}))
    summary = run.train(lambda r: r.explore(range(1, 4)))
    assert summary.step == 3 and summary.checkpoint == run.job / "global_step_3" and not summary.is_stopped


def test_incomplete_last_batch_is_trained(make_config: Maker) -> None:
    run = Run(make_config(buffer={"total_steps": None, "train_batch_size": 5}))
    assert run.train(lambda r: r.explore(range(1, 2))).step == 2
    assert [line["sample/experience_count"] for line in run.lines()] == [5.0, 3.0]


def test_step_without_experiences_goes_on_without_training(make_config: Maker) -> None:
    run = Run(make_config(mode="both", trainer={"total_steps": 2}))

    def prepare(r: Run) -> None:
        scope = {"run": "p/n", "stage": ""}
        r.store.open_producer("experience_buffer", "explorer", **scope)
        r.store.append("experience_buffer", [], producer="explorer", explore_step=1, **scope)
        r.store.announce_wait("experience_buffer", "explorer", 2, **scope)

    before = run.train(prepare)
    assert before.step == 2 and before.metrics["sample/experience_count"] == 0.0
    assert "actor/grad_norm" not in before.metrics


@pytest.mark.difference("After an error")
def test_starved_trainer_ends_with_its_own_error_and_saves_nothing(make_config: Maker) -> None:
    source = {"experience_buffer": {"max_read_timeout": 0.3}}
    run = Run(make_config(buffer={"trainer_input": source}))
    with pytest.raises(StarvedError):
        run.train(lambda r: r.explore(range(0), close=False))
    assert CheckpointStore(run.job).steps() == []


def test_stop_ends_a_wait_and_saves(make_config: Maker) -> None:
    run = Run(make_config())

    def prepare(r: Run) -> None:
        r.explore(range(1, 3), close=False)
        asyncio.get_running_loop().call_later(2.0, r.trainer.request_stop)

    summary = run.train(prepare)
    assert summary.is_stopped and summary.step == 2 and summary.checkpoint == run.job / "global_step_2"
    assert not (run.job / "global_step_2" / "actor" / "huggingface" / "model.safetensors").exists()


def test_stop_ends_a_publication_that_nobody_takes(make_config: Maker) -> None:
    run = Run(make_config(mode="both", trainer={"total_steps": 4}))
    waiting: list[asyncio.Task[int]] = []

    def prepare(r: Run) -> None:
        r.explore(range(1, 5))
        waiting.append(asyncio.get_running_loop().create_task(r.synchronizer.wait_for_version(1, explorer="explorer")))
        waiting[0].add_done_callback(lambda _: r.trainer.request_stop())

    summary = run.train(prepare)
    assert summary.is_stopped and summary.step == 1 and summary.checkpoint == run.job / "global_step_1"


@pytest.mark.parametrize(("choice", "steps"), [("last", [4]), ("always", [2, 4]), ("never", [])])
def test_hugging_face_weights_are_saved_when_asked_for(make_config: Maker, choice: str, steps: list[int]) -> None:
    from transformers import AutoModelForCausalLM

    run = Run(make_config(trainer={"total_steps": 4, "save_interval": 2, "save_hf_checkpoint": choice}))
    run.train(lambda r: r.explore(range(1, 5)))
    folders = {step: run.job / f"global_step_{step}" / "actor" / "huggingface" for step in (2, 4)}
    assert [step for step, folder in folders.items() if (folder / "model.safetensors").exists()] == steps
    assert all((folder / "tokenizer.json").exists() for folder in folders.values())
    if steps:
        model = AutoModelForCausalLM.from_pretrained(folders[4])
        weights = live_weights(run)
        assert model.dtype == torch.float32
        assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())


def test_checkpoint_has_the_layout_of_verl(make_config: Maker) -> None:
    from trinity.common.models.utils import load_fsdp_state_dict_from_verl_checkpoint

    run = Run(make_config(trainer={"total_steps": 1}))
    run.train(lambda r: r.explore(range(1, 2)))
    actor = run.job / "global_step_1" / "actor"
    for part in ("model", "optim", "extra_state"):
        content = torch.load(actor / f"{part}_world_size_1_rank_0.pt", weights_only=True)
        assert content
    assert json.loads((actor / "fsdp_config.json").read_text()) == {"FSDP_version": 1, "world_size": 1}
    state = load_fsdp_state_dict_from_verl_checkpoint(str(actor))
    weights = live_weights(run)
    assert all(torch.equal(weights[name], state[name]) for name in weights)
    assert (run.job / "latest_checkpointed_iteration.txt").read_text() == "1"


def test_weights_are_published_and_what_the_explorer_needs_is_saved(make_config: Maker) -> None:
    rhythm = {"trainer_sync_interval": 2}
    run = Run(make_config(mode="both", trainer={"total_steps": 3}, synchronizer=rhythm))

    def prepare(r: Run) -> None:
        r.explore(range(1, 4))
        asyncio.get_running_loop().create_task(r.synchronizer.report_explorer({"explore_step": 1}, explorer="explorer"))

    summary = run.train(prepare)
    assert asyncio.run(run.synchronizer.newest_version()) == 3
    served = read_served_weights(summary.checkpoint)
    assert list(served) == [2]
    published = run.trainer.publisher.transport.get(2)
    assert all(torch.equal(served[2][name], tensor) for name, tensor in published.items())
    live = live_weights(run)
    assert any(not torch.equal(served[2][name], live[name]) for name in live)
    assert json.loads((summary.checkpoint / "explorer.json").read_text()) == {"explore_step": 1}
    assert read_trainer_state(summary.checkpoint).served_versions == (2,)


def test_changed_reference_model_is_refused(make_config: Maker, tmp_path: Path, model_path: Path) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(model_path, copy)
    config = make_config(model={"model_path": str(copy)}, algorithm={"kl_loss_fn": "k2"}, trainer={"total_steps": 1})
    Run(config).train(lambda r: r.explore(range(1, 2)))
    (copy / "extra.txt").write_text("changed")
    with pytest.raises(CheckpointError, match="its files changed"):
        Run(config, resume=True).train()


def test_checkpoint_of_another_model_is_refused(make_config: Maker, tmp_path: Path) -> None:
    from tests.tiny import tiny_model

    Run(make_config(trainer={"total_steps": 1})).train(lambda r: r.explore(range(1, 2)))
    tiny_model(tmp_path / "larger", "llama", hidden_size=32)
    config = make_config(model={"model_path": str(tmp_path / "larger")}, trainer={"total_steps": 2})
    with pytest.raises(CheckpointError, match="(?s)cannot continue from .*global_step_1.*use the model.model_path"):
        Run(config, resume=True).train()


def test_finished_run_has_nothing_left_to_do(make_config: Maker) -> None:
    config = make_config(trainer={"total_steps": 2})
    Run(config).train(lambda r: r.explore(range(1, 3)))
    written = (Path(config.checkpoint_job_dir) / "global_step_2" / "MANIFEST.json").stat().st_mtime_ns
    again = Run(config, resume=True)
    assert again.train().step == 2
    assert (again.job / "global_step_2" / "MANIFEST.json").stat().st_mtime_ns == written


def test_demonstrations_are_learnt(make_config: Maker, tmp_path: Path, demonstrations: Path) -> None:
    buffer = {"train_batch_size": 20, "total_steps": 60, "trainer_input": {"experience_buffer": _dataset(tmp_path)}}
    algorithm = {"algorithm_type": "sft", "kl_loss_fn": None, "optimizer": {"lr": 1e-2}}
    run = Run(make_config(algorithm=algorithm, buffer=buffer))
    run.train()
    losses = [line["actor/sft_loss"] for line in run.lines()]
    assert len(losses) == 60 and losses[-1] < 0.25 * losses[0]
