from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny_model


@pytest.fixture(scope="package")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Llama."""
    path = tmp_path_factory.mktemp("llama")
    tiny_model(path, "llama")
    return path
