"""vLLM's own reload over small models that load their weights as its models do, well and badly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trinity.engine.vllm.settings import file_digest
from trinity.utils.environment import environment

SIZE = 4


class Model(nn.Module):
    """Two layers; `load_weights` is that of a model of vLLM."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(SIZE, SIZE, bias=False)
        self.first.register_buffer("table", torch.arange(3.0), persistent=False)
        self.requires_grad_(False)

    def take(self, name: str, parameter: Any, tensor: Tensor) -> None:
        """Hand a tensor to the parameter's loader."""
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)

    def load_weights(self, weights: Any) -> set[str]:
        """Take every tensor."""
        held = dict(self.named_parameters())
        for name, tensor in weights:
            self.take(name, held[name], tensor)
        return set(held)


class Copying(Model):
    """Copies a weight past its loader, as experts of some models are."""

    def take(self, name: str, parameter: Any, tensor: Tensor) -> None:
        """Copy the second layer's weight."""
        if name.startswith("second"):
            parameter.data.copy_(tensor)
        else:
            super().take(name, parameter, tensor)


class Deaf(Model):
    """Takes nothing once it has started."""

    has_started = False

    def take(self, name: str, parameter: Any, tensor: Tensor) -> None:
        """Leave everything out."""
        if not self.has_started:
            super().take(name, parameter, tensor)


class Forgetting(Model):
    """Takes a weight at its start, and never again."""

    has_started = False

    def take(self, name: str, parameter: Any, tensor: Tensor) -> None:
        """Leave the second layer's weight out."""
        if not (self.has_started and name.startswith("second")):
            super().take(name, parameter, tensor)


class Halving(Forgetting):
    """Takes half of a weight where it is loaded once more."""

    def take(self, name: str, parameter: Any, tensor: Tensor) -> None:
        """Copy one half of the second layer's weight."""
        if self.has_started and name.startswith("second"):
            parameter.data[: SIZE // 2].copy_(tensor[: SIZE // 2])
        else:
            super().take(name, parameter, tensor)


def weights(seed: int) -> dict[str, Tensor]:
    """Return weights as a folder has them."""
    generator = torch.Generator().manual_seed(seed)
    return {f"{name}.weight": torch.randn(SIZE, SIZE, generator=generator) for name in ("first", "second")}


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """A model of the parameter's class with the weights of seed 0, and what reloads it."""
    pytest.importorskip("vllm")
    with environment({}):
        from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
        from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

        from trinity.engine.vllm.reload import Reloader

        model = request.param()
        record_metadata_for_reloading(model)
        model.load_weights(weights(0).items())
        model.has_started = True
        with set_current_vllm_config(VllmConfig()):
            yield model, Reloader(model, ModelConfig.__new__(ModelConfig))


@pytest.mark.parametrize("made", [Model, Copying], indirect=True)
def test_every_weight_is_new_after_a_reload_whichever_way_it_is_copied(made: tuple[Any, Any]) -> None:
    model, reloader = made
    assert reloader.try_reload(lambda: weights(0).items()) is None
    for seed in (1, 2):
        assert reloader.reload(weights(seed).items()) == []
        assert all(torch.equal(dict(model.named_parameters())[n], t) for n, t in weights(seed).items())
        assert torch.equal(model.first.table, torch.arange(3.0)), "a buffer keeps what it has"
    assert reloader.early == ({"second"} if isinstance(model, Copying) else set())


@pytest.mark.parametrize("made", [Forgetting, Halving], indirect=True)
def test_a_weight_that_does_not_come_whole_is_named(made: tuple[Any, Any]) -> None:
    reason = made[1].try_reload(lambda: weights(0).items())
    assert reason == "of which a reload changes 1 of 3 tensors (first second.weight)"


@pytest.mark.parametrize("made", [Copying], indirect=True)
def test_a_weight_that_is_lost_without_a_trial_is_named(made: tuple[Any, Any]) -> None:
    assert made[1].reload(weights(1).items()) == ["second.weight"]


@pytest.mark.parametrize(
    ("made", "said"),
    [(Forgetting, "1 weights (first second.weight)"), (Deaf, "2 weights (first first.weight)")],
    indirect=["made"],
)
def test_an_update_that_a_model_does_not_take_is_an_error(made: tuple[Any, Any], said: str, tmp_path: Path) -> None:
    from vllm.config import get_current_vllm_config

    from trinity.engine.vllm.worker import WorkerCalls

    worker: Any = WorkerCalls()
    worker.get_model = lambda: made[0]
    worker.vllm_config, worker._reload = get_current_vllm_config(), made[1]
    path = str(tmp_path / "weights.safetensors")
    save_file(weights(1), path)
    with pytest.raises(ValueError, match=re.escape(f"vLLM did not take {said}")):
        worker.trinity_update(path, file_digest(path))
    with pytest.raises(ValueError, match="the weights' digest must be other, got"):
        worker.trinity_update(path, "other")
