"""Checkpoints as plain tensors: veRL's shards of one, two and four ranks, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_model
from tests.verl_checkpoints import Written, tensors
from trinity.common.errors import CheckpointError
from trinity.common.models.utils import (
    get_checkpoint_dir_with_step_num,
    load_fsdp_state_dict_from_verl_checkpoint,
    load_state_dict,
)
from trinity.trainer.verl.parallel.resharding import read_parts


def test_reading_leaves_what_others_have_allowed(tmp_path: Path) -> None:
    allowed = set(torch.serialization.get_safe_globals())
    torch.save({"a": torch.ones(2)}, tmp_path / "model_world_size_1_rank_0.pt")
    assert torch.equal(read_parts(tmp_path, "model", 1)[0]["a"], torch.ones(2))
    assert torch.equal(load_fsdp_state_dict_from_verl_checkpoint(str(tmp_path))["a"], torch.ones(2))
    assert set(torch.serialization.get_safe_globals()) == allowed and len(allowed) > 0


@pytest.mark.parametrize("world", [2, 4])
def test_shards_of_all_ranks_join_to_the_weights(verl: Written, world: int) -> None:
    actor = verl.plain[world] / "global_step_3" / "actor"
    for folder in (actor, actor.parent):
        state = load_fsdp_state_dict_from_verl_checkpoint(str(folder))
        assert state.keys() == tensors().keys()
        for name, tensor in tensors().items():
            assert type(state[name]) is Tensor and torch.equal(state[name], tensor)


def test_replicas_of_a_tied_model_in_bfloat16_have_the_same_bits(verl: Written) -> None:
    state = load_fsdp_state_dict_from_verl_checkpoint(verl.folder)
    assert state.keys() == verl.actor.keys() and "lm_head.weight" in state
    assert all(t.dtype == torch.bfloat16 and torch.equal(t, verl.actor[n]) for n, t in state.items())


def test_plain_tensors_of_one_rank(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "model_world_size_1_rank_0.pt")
    (tmp_path / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}), encoding="utf-8")
    state = load_state_dict(tmp_path)
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors().items())


def test_safetensors_of_a_model_folder(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "llama")
    state = load_state_dict(tmp_path)
    assert state.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(state[name], parameter) for name, parameter in model.named_parameters())


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.mark),)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path) -> None:
    """X12."""
    mark = tmp_path / "was run"
    torch.save({"weight": Attack(mark)}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(CheckpointError, match="objects other than tensors"):
        load_fsdp_state_dict_from_verl_checkpoint(tmp_path)
    assert not mark.exists()


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "model_world_size_2_rank_0.pt")
    with pytest.raises(CheckpointError, match="model_world_size_2_rank_1.pt"):
        load_fsdp_state_dict_from_verl_checkpoint(tmp_path)


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model_world_size_1_rank_0.pt"
    torch.save(tensors(), file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=file.name):
        load_fsdp_state_dict_from_verl_checkpoint(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no file model_world_size_W_rank_R.pt"):
        load_fsdp_state_dict_from_verl_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="model.safetensors"):
        load_state_dict(tmp_path)


def test_a_config_without_world_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fsdp_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="world_size"):
        load_fsdp_state_dict_from_verl_checkpoint(tmp_path)


def test_the_checkpoint_of_a_step_or_the_latest(tmp_path: Path) -> None:
    for step in (2, 10):
        (tmp_path / f"global_step_{step}").mkdir()
    assert get_checkpoint_dir_with_step_num(tmp_path) == (str(tmp_path / "global_step_10"), 10)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("2", encoding="ascii")
    assert get_checkpoint_dir_with_step_num(str(tmp_path)) == (str(tmp_path / "global_step_2"), 2)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("99", encoding="ascii")
    assert get_checkpoint_dir_with_step_num(tmp_path)[1] == 10
    assert get_checkpoint_dir_with_step_num(tmp_path, step_num=2)[1] == 2


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="global_step_5"):
        get_checkpoint_dir_with_step_num(tmp_path, step_num=5)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        get_checkpoint_dir_with_step_num(tmp_path)
    with pytest.raises(CheckpointError, match="trainer_type"):
        get_checkpoint_dir_with_step_num(tmp_path, "other")
    assert get_checkpoint_dir_with_step_num(tmp_path, raise_error=False) == (None, 0)
