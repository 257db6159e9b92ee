"""Whether a GPU is there, without loading PyTorch."""

from __future__ import annotations

import os
from pathlib import Path


def has_gpu() -> bool:
    """Return whether an NVIDIA device is there and not hidden by CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return any(Path("/dev").glob("nvidia[0-9]*")) and visible not in ("", "-1")
