"""Checkpoints of any number of ranks, continued by any other: weights, optimizer, adapter, critic, what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from transformers import AutoModelForCausalLM

from tests.trainer import rank_calls
from tests.trainer.conftest import make_experiences
from tests.trainer.rank_calls import ALONE
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_ranks import BY_ROWS, tree, with_actor
from tests.trainer.test_together import _config as everything
from tests.trainer.test_together import _experiences as experiences_of_everything
from tests.trainer.test_update import worker as one_worker
from trinity.common.config import Config
from trinity.common.errors import CheckpointError
from trinity.common.models.shards import joined
from trinity.trainer.verl.parallel.resharding import read_parts

Maker = Callable[..., Config]
SGD = {"optimizer": {"optimizer_type": "sgd", "lr": 0.3}}


def run(pool: RankPool, world: int, *args: Any) -> rank_calls.Outcome:
    """Return what the first of `world` ranks returns for `rank_calls.continued`."""
    if world == 1:
        return rank_calls.continued(ALONE, *args)
    return pool.run(world, rank_calls.continued, *args)[0]


def distance(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Return the largest difference of two sets of tensors."""
    return max(float((tensor - second[name]).abs().max()) for name, tensor in first.items())


def test_one_two_one_four_ranks_go_on_as_one_worker_does(make_config: Maker, tmp_path: Path, pool: RankPool) -> None:
    config = everything(make_config)
    made = one_worker(config)
    steps = [experiences_of_everything(made, step) for step in (1, 2, 3, 4)]
    alone, metrics = rank_calls.train(ALONE, tree(config), steps, BY_ROWS)
    folders = [None, *(tmp_path / f"step_{number}" for number in range(1, 5))]
    for number, world in enumerate((1, 2, 1, 4)):
        last = run(pool, world, tree(config), folders[number], steps[number : number + 1], number, folders[number + 1])
        assert last[1][0] == {k: pytest.approx(v, rel=2e-4, abs=2e-5) for k, v in metrics[number].items()}
    assert distance(alone, last[0]) < 1e-4
    files = {path.name for path in (tmp_path / "step_4" / "critic").glob("*.pt")}
    kinds = ("model", "optim", "extra_state")
    assert files == {f"{kind}_world_size_4_rank_{rank}.pt" for kind in kinds for rank in range(4)}
    config_file = tmp_path / "step_4" / "actor" / "fsdp_config.json"
    assert json.loads(config_file.read_text()) == {"FSDP_version": 2, "world_size": 4}


@pytest.mark.difference("Sharded checkpoints")
def test_a_loaded_checkpoint_is_bit_equal_at_every_world_size(
    make_config: Maker, tmp_path: Path, pool: RankPool
) -> None:
    groups = make_config(trainer=with_actor(fsdp_size=2))
    plain = make_config()
    steps = [make_experiences(1)]
    written, _ = run(pool, 4, tree(groups), None, steps, 0, tmp_path / "four")
    for world in (1, 2):
        read, _ = run(pool, world, tree(plain), tmp_path / "four", [], 1, tmp_path / f"again_{world}")
        assert all(torch.equal(tensor, read[name]) for name, tensor in written.items())
    moments = [_moments(tmp_path / name, world) for name, world in (("four", 4), ("again_1", 1), ("again_2", 2))]
    assert len(moments[0]) > 20 and all(
        torch.equal(t, other[k]) for other in moments[1:] for k, t in moments[0].items()
    )


def test_files_of_several_ranks_have_the_mesh_and_the_placements_that_veRLs_merger_joins(
    make_config: Maker, tmp_path: Path, pool: RankPool
) -> None:
    config = make_config(trainer=with_actor(fsdp_size=2))
    run(pool, 4, tree(config), None, [make_experiences(1)], 0, tmp_path / "four")
    parts = read_parts(tmp_path / "four" / "actor", "model", 4)
    assert all(list(part) == list(parts[0]) for part in parts) and "lm_head.weight" in parts[0]
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        spread = [(t.device_mesh.mesh_dim_names, tuple(t.placements)) for t in tensors]
        assert spread == [(("ddp", "fsdp"), (Replicate(), Shard(0)))] * 4
        assert [t.device_mesh.mesh.tolist() for t in tensors] == [[[0, 1], [2, 3]]] * 4
        first, other = (torch.cat([t._local_tensor for t in half]) for half in (tensors[:2], tensors[2:]))
        assert torch.equal(first, other) and first.shape == tensors[0].shape


def _moments(folder: Path, world: int) -> dict[str, Tensor]:
    parts = read_parts(folder / "actor", "optim", world)
    return {
        f"{number}.{key}": joined([part["state"][number][key] for part in parts])
        for number, values in parts[0]["state"].items()
        for key in values
    }


@pytest.mark.parametrize("strategy", ["unrestricted", "single_node", "single_process", "single_thread"])
def test_the_hugging_face_weights_of_two_ranks_are_those_that_they_hold(
    make_config: Maker, tmp_path: Path, pool: RankPool, strategy: str
) -> None:
    config = make_config(algorithm=SGD, trainer={"save_strategy": strategy})
    held, _ = run(pool, 2, tree(config), None, [make_experiences(1)], 0, tmp_path / "two", True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "two" / "actor" / "huggingface", dtype=torch.float32)
    assert all(torch.equal(tensor, held[name]) for name, tensor in model.named_parameters())


@pytest.mark.parametrize(
    ("strategy", "together"),
    [
        ("unrestricted", [{0, 1, 2, 3}]),
        ("single_node", [{0, 1}, {2, 3}]),
        ("single_process", [{0}, {1}, {2}, {3}]),
        ("single_thread", [{0}, {1}, {2}, {3}]),
    ],
)
def test_who_writes_at_the_same_time(pool: RankPool, strategy: str, together: list[set[int]]) -> None:
    times = pool.run(4, rank_calls.writes, strategy)[0]
    for group in together:
        begin, end = min(times[rank][0] for rank in group), max(times[rank][1] for rank in group)
        assert all(times[rank][0] < other[1] for rank in group for other in (times[r] for r in group))
        outside = [times[rank] for rank in range(4) if rank not in group]
        assert all(other_end <= begin or end <= other_begin for other_begin, other_end in outside)


def test_an_adapter_goes_from_two_ranks_to_one_and_is_exported_merged(
    make_config: Maker, tmp_path: Path, pool: RankPool
) -> None:
    config = make_config(model={"lora_configs": [{"lora_rank": 4}]}, algorithm=SGD)
    steps = [make_experiences(step) for step in (1, 2)]
    alone, _ = rank_calls.train(ALONE, tree(config), steps, {})
    run(pool, 2, tree(config), None, steps[:1], 0, tmp_path / "two", True)
    found, _ = run(pool, 1, tree(config), tmp_path / "two", steps[1:], 1, None)
    assert distance(alone, found) < 1e-6
    back, _ = run(pool, 2, tree(config), tmp_path / "two", steps[1:], 1, None)
    assert distance(alone, back) < 1e-6
    made = one_worker(config)
    made.load(tmp_path / "two")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "two" / "actor" / "huggingface", dtype=torch.float32)
    merged = made.weights()
    assert all(
        float((t.detach() - merged[name]).abs().max()) < 1e-6 for name, t in model.named_parameters() if name in merged
    )


def test_a_file_that_is_missing_or_holds_code_is_refused(make_config: Maker, tmp_path: Path, pool: RankPool) -> None:
    """X12."""
    config = make_config()
    run(pool, 2, tree(config), None, [], 0, tmp_path / "two")
    shutil.copytree(tmp_path / "two", tmp_path / "torn")
    (tmp_path / "torn" / "actor" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(CheckpointError, match="model_world_size_2_rank_1.pt") as caught:
        one_worker(config).load(tmp_path / "torn")
    assert caught.value.code == "E7008"
    (tmp_path / "two" / "actor" / "model_world_size_2_rank_1.pt").write_bytes(pickle.dumps(shutil.rmtree))
    with pytest.raises(CheckpointError, match="cannot continue from") as caught:
        one_worker(config).load(tmp_path / "two")
    assert caught.value.code == "E7008"


def test_a_checkpoint_holds_and_gives_what_its_contents_name(make_config: Maker, tmp_path: Path) -> None:
    def with_contents(**names: list[str]) -> dict[str, Any]:
        actor = {f"{kind}_contents": parts for kind, parts in names.items()}
        return tree(make_config(trainer={"trainer_config": {"actor_rollout_ref": {"actor": {"checkpoint": actor}}}}))

    lean = with_contents(save=["model", "hf_model"], load=["model"])
    written, _ = rank_calls.continued(ALONE, lean, None, [make_experiences(1)], 0, tmp_path / "lean")
    files = {path.name for path in (tmp_path / "lean" / "actor").iterdir()}
    assert files == {"model_world_size_1_rank_0.pt", "fsdp_config.json", "huggingface"}
    assert (tmp_path / "lean" / "actor" / "huggingface" / "model.safetensors").is_file()
    read, _ = rank_calls.continued(ALONE, lean, tmp_path / "lean", [], 1, None)
    assert all(torch.equal(tensor, read[name]) for name, tensor in written.items())
    whole = with_contents(save=["model", "optimizer", "extra"], load=["optimizer"])
    rank_calls.continued(ALONE, whole, None, [make_experiences(1)], 0, tmp_path / "whole")
    assert not (tmp_path / "whole" / "actor" / "huggingface" / "model.safetensors").exists()
    fresh, _ = rank_calls.continued(ALONE, whole, tmp_path / "whole", [], 1, None)
    assert distance(fresh, rank_calls.continued(ALONE, whole, None, [], 0, None)[0]) == 0.0
