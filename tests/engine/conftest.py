from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.tiny import tiny_model


@pytest.fixture(scope="package")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """Folder and model of a tiny Llama with tied embeddings."""
    path = tmp_path_factory.mktemp("llama")
    return path, tiny_model(path, "llama")


@pytest.fixture(scope="package")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """Folder and model of a tiny GPT-2, which the fast path does not know."""
    path = tmp_path_factory.mktemp("gpt2")
    return path, tiny_model(path, "gpt2")
