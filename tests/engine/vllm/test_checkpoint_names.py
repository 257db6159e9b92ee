"""Weights of modules become those of a saved folder, by transformers' own rules, for every family that it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from tests.families import FAMILIES, tiny_config, tiny_model
from trinity.common.errors import EnvironmentProblem
from trinity.engine.vllm.checkpoint_names import CheckpointNames

# At least so many of the families that transformers knows are made tiny, so that the sweep cannot shrink unseen.
FEWEST = 150


def trained(family: str, folder: Path) -> Any:
    """Return a model that was read from `folder`, with other weights than those there."""
    tiny_model(tiny_config(family)).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    return model


def held(model: Any) -> dict[str, torch.Tensor]:
    """Return what the trainer publishes of a model."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.nightly
def test_every_family_s_weights_get_the_names_and_values_that_it_would_be_saved_with(tmp_path: Path) -> None:
    made, renamed = 0, set()
    for family in FAMILIES:
        start, saved = tmp_path / f"{family}-start", tmp_path / f"{family}-saved"
        try:
            model = trained(family, start)
        except Exception:  # noqa: BLE001 (whether transformers can make a tiny model is not asked here)
            continue
        made += 1
        names, weights = CheckpointNames(start, AutoConfig.from_pretrained(start)), held(model)
        assert {name: tensor.shape for name, tensor in weights.items()} == names.parameters, family
        model.save_pretrained(saved)
        expected, found = load_file(saved / "model.safetensors"), dict(names.reverted(weights))
        assert {name: tensor.shape for name, tensor in found.items()} == names.written, family
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items()), family
        assert expected.keys() == names.written.keys() | names.constant, family
        buffers = revert_weight_conversion(model, dict(model.named_buffers()))
        assert names.constant <= buffers.keys(), family
        if weights.keys() - expected.keys():
            renamed.add(family)
    assert made >= FEWEST
    assert {"mixtral", "qwen3_moe", "olmoe", "gpt_neox", "granitemoe"} <= renamed


def test_a_layer_is_converted_at_a_time(tmp_path: Path) -> None:
    model = trained("mixtral", tmp_path)
    asked: list[str] = []

    class Weights(dict):
        def __getitem__(self, name: str) -> torch.Tensor:
            asked.append(name)
            return super().__getitem__(name)

    names = CheckpointNames(tmp_path, AutoConfig.from_pretrained(tmp_path))
    for name, _ in names.reverted(Weights(held(model))):
        if ".layers.0." in name:
            assert not any(".layers.1." in other for other in asked), "the second layer was converted with the first"
    assert sorted(asked) == sorted(names.parameters)


def test_a_folder_that_is_not_as_transformers_would_save_it_is_refused_by_name(tmp_path: Path) -> None:
    tiny_model(tiny_config("mixtral")).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    renamed = {name.replace(".layers.0.", ".layers.7."): tensor for name, tensor in weights.items()}
    save_file(renamed, file, metadata={"format": "pt"})
    with pytest.raises(EnvironmentProblem, match=r"this mixtral model.*\.layers\.0\..*no such weight") as caught:
        CheckpointNames(tmp_path, AutoConfig.from_pretrained(tmp_path))
    assert caught.value.code == "E3225" and "save_pretrained" in str(caught.value)
