from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.engine.vllm.forked import forked_processes
from tests.tiny import tiny_model
from trinity.common.config.model import ModelConfig
from trinity.common.errors import EngineError
from trinity.common.models.generate_params import GenerateParams
from trinity.engine.vllm.engine import VLLMEngine
from trinity.engine.vllm.settings import VLLMSettings

Served = tuple[VLLMEngine, PreTrainedModel]
MAX_MODEL_LEN = 128


def settings(path: Path, **changes: Any) -> VLLMSettings:
    """Return the settings of a small float32 engine."""
    model = ModelConfig.model_validate({"model_path": str(path), "max_model_len": MAX_MODEL_LEN})
    return VLLMSettings(
        **{"model": model, "params": GenerateParams(), "dtype": "float32", "max_num_seqs": 16, "timeout_s": 60.0}
        | changes
    )


@pytest.fixture(scope="package")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """Folder and model of a tiny Llama whose head is its embedding."""
    path = tmp_path_factory.mktemp("tied")
    return path, tiny_model(path, "llama", head_dim=32)


@pytest.fixture(scope="package")
def forked() -> Iterator[None]:
    """The processes of the engines that this one starts are forks."""
    pytest.importorskip("vllm")
    with forked_processes():
        yield


@pytest.fixture(scope="package")
def started(forked: None) -> Iterator[list[VLLMEngine]]:
    """The engines that tests have started, the running one last."""
    made: list[VLLMEngine] = []
    yield made
    for each in made:
        asyncio.run(each.shutdown())


@pytest.fixture
def served(started: list[VLLMEngine], tied: tuple[Path, PreTrainedModel]) -> VLLMEngine:
    """One running engine for all tests, started again after a test that has killed it."""
    if not started or not _is_running(started[-1]):
        started.append(VLLMEngine(settings(tied[0])))
        asyncio.run(started[-1].prepare())
    return started[-1]


def _is_running(made: VLLMEngine) -> bool:
    try:
        asyncio.run(made.stats())
    except EngineError:
        return False
    return True


@pytest.fixture
def vllm(served: VLLMEngine, tied: tuple[Path, PreTrainedModel]) -> Served:
    """The running engine with the weights of the folder, and the model that holds them."""
    asyncio.run(served.update_weights(dict(tied[1].named_parameters()), version=0))
    return served, tied[1]
