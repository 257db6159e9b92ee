"""Check of an adapter's folder before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trinity.common.models.preflight import Finding

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def check_adapter_dir(path: Path) -> Iterator[Finding]:
    """Yield what an adapter's folder lacks (E3118)."""
    absent = [name for name in ADAPTER_FILES if not (path / name).is_file()]
    if absent:
        yield Finding(
            "E3118",
            f"model.lora_configs[0].path {path} has no {' and no '.join(absent)}; give the folder of an adapter that "
            "PEFT saved with safetensors, or null for a new one",
        )
