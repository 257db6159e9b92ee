"""Runs that begin from a checkpoint of veRL: weights, optimizer, schedule, random generators, position."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.e2e.tiny_run import PLAIN, TinyRun
from tests.tiny import tiny_model
from tests.verl_checkpoints import Written
from trinity.common.checkpoint import CheckpointStore, verify_checkpoint
from trinity.common.config import Config
from trinity.common.constants import CACHE_DIR_ENV_VAR
from trinity.common.errors import CheckpointError
from trinity.common.models.utils import load_state_dict
from trinity.launch.conversion.adoption import adopted, tell_rows
from trinity.launch.conversion.exporting import Exported, ExportRequest, export_checkpoint
from trinity.launch.rewind import is_foreign
from trinity.launch.run import RunOptions, plan_run
from trinity.trainer.verl.random_state import restore_random_state
from trinity.trainer.verl.worker import ActorWorker
from trinity.utils import failpoints

Planned = Callable[..., Config]


@pytest.fixture
def planned(tmp_path: Path, verl: Written) -> Planned:
    """Return the configuration of a small run of veRL's model, with further overrides."""

    def make(*overrides: str) -> Config:
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(PLAIN | {"checkpoint_root_dir": str(tmp_path / "out")}))
        (tmp_path / "train.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n' * 50)
        own = (f"model.model_path={verl.model}", f"buffer.explorer_input.taskset.path={tmp_path}/train.jsonl")
        return plan_run(file, RunOptions(overrides=[*own, "buffer.total_steps=22", *overrides])).stages[0].config

    return make


def store_of(config: Config) -> CheckpointStore:
    return CheckpointStore(Path(config.checkpoint_job_dir))


def test_weights_moments_and_generators_are_those_that_veRL_wrote(planned: Planned, verl: Written) -> None:
    config = planned()
    made = adopted(config, store_of(config), verl.folder)
    assert made is not None and verify_checkpoint(made)["step"] == 20
    worker = ActorWorker(config, tokenizer=None, total_steps=22, device="cpu")
    worker.load(made)
    held = worker.model.state_dict()
    assert held.keys() == verl.actor.keys()
    assert all(torch.equal(tensor, verl.actor[name].float()) for name, tensor in held.items())
    state = worker.optimizer.state_dict()["state"]
    assert {f"{number}.{key}" for number, each in state.items() for key in each} == verl.moments.keys()
    assert all(torch.equal(t, verl.moments[f"{n}.{k}"].float()) for n, each in state.items() for k, t in each.items())
    assert any(float(t.abs().max()) > 0 for n, t in verl.moments.items() if n.endswith("exp_avg"))
    extra = torch.load(verl.folder / "actor" / "extra_state_world_size_4_rank_0.pt", weights_only=False)
    assert torch.equal(torch.get_rng_state(), extra["rng"]["cpu"])
    assert np.array_equal(np.random.get_state()[1], extra["rng"]["numpy"][1])
    assert worker.actor.stepper.last_step == extra["lr_scheduler"]["last_epoch"] == 1
    assert worker.optimizer.param_groups[0]["weight_decay"] == config.algorithm.optimizer.weight_decay


def test_a_run_goes_on_at_the_step_of_the_checkpoint(tmp_path: Path, verl: Written) -> None:
    run = TinyRun(tmp_path).change(
        model__model_path=str(verl.model),
        buffer__total_steps=22,
        trainer__trainer_config={"trainer": {"resume_mode": "resume_path", "resume_from_path": str(verl.folder)}},
    )
    run.write_rows([{"question": f"{a}+1=", "answer": str(a + 1)} for a in range(50)])
    ended = run.finish()
    assert ended.status == 0, ended.output
    assert [line["step"] for line in run.lines("trainer")] == [21, 22]
    explored = run.lines("explorer")
    assert [line["step"] for line in explored] == [21, 22]
    assert explored[0]["rollout/model_version"] == 20
    assert CheckpointStore(run.job).steps() == [20, 21, 22]
    done = export_checkpoint(ExportRequest(run.job, tmp_path / "export", dtype="bfloat16"))
    assert done.step == 22 and done.source == str(run.job / "global_step_22" / "actor")
    weights = load_state_dict(run.job / "global_step_22" / "actor")
    assert all(
        torch.equal(t, weights[n].bfloat16()) for n, t in load_file(tmp_path / "export" / "model.safetensors").items()
    )
    check_card((tmp_path / "export" / "README.md").read_text(), done)
    again = run.finish("--set", "buffer.total_steps=23")
    assert again.status == 0 and "continuing from step 22" in again.output, again.output
    assert [line["step"] for line in run.lines("trainer")] == [21, 22, 23]


@pytest.mark.parametrize(
    ("state", "order", "said", "is_lost"),
    [
        ({"_num_yielded": 20}, "sequential", "had read 20 batches", False),
        ({"_num_yielded": 4}, "sequential", "had read 4 batches", True),
        ({"_snapshot": {"_snapshot_step": 19}, "_steps_since_snapshot": 1}, "shuffle", "had read 20 batches", True),
        ({"other": 1}, "shuffle", "of a newer form", True),
        (Path("x"), "shuffle", "objects other than tensors", True),
    ],
)
def test_what_of_veRLs_place_in_the_data_is_not_continued_is_told(
    planned: Planned, verl: Written, tmp_path: Path, caplog: Any, state: Any, order: str, said: str, is_lost: bool
) -> None:
    config = planned(f"buffer.explorer_input.taskset.data_selector.selector_type={order}")
    torch.save(state, tmp_path / "data.pt")
    with caplog.at_level(logging.INFO, logger="trinity.launch"):
        tell_rows(config, tmp_path, 20)
    (told,) = caplog.records
    assert said in told.getMessage() and ("[W7059]" in told.getMessage()) == (told.levelname == "WARNING") == is_lost


def test_a_checkpoint_at_an_address_is_copied_whole_and_continued(
    planned: Planned, verl: Written, tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.filesystem("memory").put(str(verl.folder), f"{memory}/run/global_step_20", recursive=True)
    place = "trainer.trainer_config.trainer"
    for cache in ("cache", "moved"):
        monkeypatch.setenv(CACHE_DIR_ENV_VAR, str(tmp_path / cache))
        config = planned(f"{place}.resume_mode=resume_path", f"{place}.resume_from_path={memory}/run/global_step_20")
        copy = Path(str(config.trainer.trainer_config.trainer.resume_from_path))
        assert copy.is_relative_to(tmp_path / cache) and copy.name == "global_step_20"
        assert is_foreign(store_of(config), copy)
        made = adopted(config, store_of(config), copy)
        assert made == store_of(config).job_dir / "global_step_20"
    for file in (verl.folder / "actor").glob("optim_*"):
        assert (made / "actor" / file.name).read_bytes() == file.read_bytes()
    assert CheckpointStore(made.parent).steps() == [20]


def check_card(card: str, done: Exported) -> None:
    """Check what a card says of a run: data, algorithm, curve, command, hash."""
    front = yaml.safe_load(card.split("---")[1])
    assert front["tags"] == ["trinity-rft", "grpo"] and front["library_name"] == "transformers"
    assert "# run, training step 22" in card and "bfloat16" in card
    assert "| Data | train.jsonl |" in card and "| Algorithm | grpo |" in card and "| Rollouts of a task | 2 |" in card
    curve = card.split("## Mean reward")[1].split("```")[1].split("\n")
    assert [line.split()[1] for line in curve if line] == ["21", "22"]
    assert "trinity run" in card.split("## Command")[1].split("```")[1]
    assert f"| `model.safetensors` | `{done.files['model.safetensors']['sha256']}` |" in card


def test_an_adapter_of_ours_is_merged_with_the_model_that_it_was_trained_on(planned: Planned, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", "gpt2", seed=3)
    config = planned(f"model.model_path={tmp_path / 'model'}", "model.lora_configs=[{lora_rank: 4, lora_alpha: 6}]")
    worker = ActorWorker(
        config, tokenizer=AutoTokenizer.from_pretrained(tmp_path / "model"), total_steps=2, device="cpu"
    )
    with torch.no_grad():
        for name, parameter in worker.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_()
    worker.save(tmp_path / "global_step_1", hf=True)
    export_checkpoint(ExportRequest(tmp_path / "global_step_1", tmp_path / "out"))
    read = load_file(tmp_path / "out" / "model.safetensors")
    expected = load_file(tmp_path / "global_step_1" / "actor" / "huggingface" / "model.safetensors")
    assert read.keys() == expected.keys() and all(torch.equal(t, expected[n]) for n, t in read.items())
    name = "transformer.h.0.attn.c_proj.weight"
    assert read[name].shape[0] == read[name].shape[1] and not torch.equal(read[name], model.state_dict()[name])
    (tmp_path / "model" / "notes.txt").write_text("changed")
    with pytest.raises(CheckpointError, match="other files than those of .*give their folder with --model") as found:
        export_checkpoint(ExportRequest(tmp_path / "global_step_1", tmp_path / "other"))
    assert found.value.code == "E7056"


def copied(verl: Written, folder: Path, step: int = 20) -> Path:
    shutil.copytree(verl.folder / "actor", folder / f"global_step_{step}" / "actor")
    return folder / f"global_step_{step}"


def test_what_cannot_be_continued_is_refused_before_anything_is_copied(
    planned: Planned, verl: Written, tmp_path: Path
) -> None:
    def refused(path: Path, match: str, *overrides: str, code: str = "E7057") -> None:
        config = planned(*overrides)
        with pytest.raises(CheckpointError, match=match) as found:
            adopted(config, store_of(config), path)
        assert found.value.code == code and store_of(config).steps() == []

    odd = copied(verl, tmp_path / "odd", step=21)
    refused(odd, "trainer_sync_interval must divide 21", "synchronizer.sync_interval=2")
    refused(verl.folder, "sync_offset be 0", "synchronizer.sync_offset=1")
    refused(verl.folder, "mode both, got train", "mode=train", "trainer.total_steps=22", "buffer.total_steps=null")
    sgd = copied(verl, tmp_path / "sgd")
    for rank in range(4):
        file = sgd / "actor" / f"optim_world_size_4_rank_{rank}.pt"
        torch.save({"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": []}, file)
    refused(sgd, "holds momentum_buffer of a parameter, and the optimizer here is Adam")
    flat: dict[str, Any] = {"step": torch.tensor(1.0), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    for rank in range(4):
        file = sgd / "actor" / f"optim_world_size_4_rank_{rank}.pt"
        torch.save({"state": {0: flat}, "param_groups": []}, file)
    refused(sgd, "FSDP 1, which keeps the moments")
    (sgd / "actor" / "extra_state_world_size_4_rank_3.pt").unlink()
    refused(sgd, "extra_state_world_size_4_rank_3.pt", code="E7003")
    (sgd / "actor" / "lora_adapter").mkdir()
    refused(sgd, "trinity convert checkpoint. merges it")


def test_a_job_that_has_begun_otherwise_does_not_take_it(planned: Planned, verl: Written) -> None:
    config = planned()
    store_of(config).write(1, lambda folder: (folder / "w").write_text("") and None, meta={}, keep=0)
    with pytest.raises(CheckpointError, match="has checkpoints of its own") as found:
        adopted(config, store_of(config), verl.folder)
    assert found.value.code == "E7044"


def test_a_copy_that_is_killed_comes_again_and_later_the_newest_is_taken(planned: Planned, verl: Written) -> None:
    config = planned()
    for place in ("ckpt.before_manifest", "ckpt.after_rename"):
        failpoints.configure(f"{place}=raise")
        with pytest.raises(RuntimeError, match="failpoint"):
            adopted(config, store_of(config), verl.folder)
        failpoints.configure("")
    made = adopted(config, store_of(config), verl.folder)
    assert made is not None and made.name == "global_step_20"
    newer = store_of(config).write(21, lambda folder: (folder / "w").write_text("") and None, meta={}, keep=0)
    assert adopted(config, store_of(config), verl.folder) == newer


def test_weights_alone_begin_a_new_optimizer(planned: Planned, verl: Written, tmp_path: Path) -> None:
    folder = copied(verl, tmp_path / "lean")
    for file in [*(folder / "actor").glob("optim_*"), *(folder / "actor").glob("extra_*")]:
        file.unlink()
    config = planned("trainer.trainer_config.actor_rollout_ref.actor.checkpoint.load_contents=[model]")
    made = adopted(config, store_of(config), folder)
    worker = ActorWorker(config, tokenizer=None, total_steps=22, device="cpu")
    assert made is not None
    worker.load(made)
    assert not worker.optimizer.state and torch.equal(
        worker.model.state_dict()["model.norm.weight"], verl.actor["model.norm.weight"].float()
    )


def test_ours_has_the_facts_that_veRL_and_its_merger_rely_on(planned: Planned, tmp_path: Path) -> None:
    from torch.optim.lr_scheduler import LambdaLR

    worker = ActorWorker(planned("algorithm.optimizer.lr=0.01"), tokenizer=None, total_steps=22, device="cpu")
    worker.actor.stepper.begin(21)
    worker.save(tmp_path / "global_step_21", hf=False)
    folder = tmp_path / "global_step_21" / "actor"
    names = [f"{kind}_world_size_1_rank_0.pt" for kind in ("extra_state", "model", "optim")]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, "fsdp_config.json", "huggingface"])
    assert json.loads((folder / "fsdp_config.json").read_text()) == {"FSDP_version": 1, "world_size": 1}
    assert {"config.json", "generation_config.json"} <= {path.name for path in (folder / "huggingface").iterdir()}
    extra = torch.load(folder / names[0], weights_only=True)
    optimizer = torch.optim.AdamW(worker.model.parameters(), lr=0.01)
    schedule = LambdaLR(optimizer, lambda _: 1.0)
    schedule.load_state_dict(extra["lr_scheduler"])
    assert (schedule.last_epoch, schedule.get_last_lr()) == (21, [0.01])
    state = extra["rng"]
    torch.set_rng_state(state["cpu"])
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])
    expected = (torch.rand(2).tolist(), random.random(), np.random.rand(2).tolist())
    restore_random_state(state)
    assert expected == (torch.rand(2).tolist(), random.random(), np.random.rand(2).tolist())
    saved = torch.load(folder / names[2], weights_only=True)
    assert saved["param_groups"][0]["params"] == list(range(len(list(worker.model.parameters()))))
    assert (saved["param_groups"][0]["lr"], saved["param_groups"][0]["initial_lr"]) == (0.01, 0.01)
