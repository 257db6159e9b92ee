"""The device on which a test's body runs: the CPU in a plain run, a CUDA device under `-m gpu`."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

# Read once, at the first product: deterministic runs set it before they load PyTorch.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where is computed; its memory is free again afterwards."""
    device = torch.device(request.param)
    yield device
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
