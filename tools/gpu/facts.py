"""What the machine has: devices, versions, packages that are there or missing. Run as a module it prints them as JSON.

Nothing of Trinity is imported, so that the facts are told wherever Python starts.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = {"vllm": "vllm", "ray": "ray", "flash-attn": "flash_attn", "triton": "triton", "beartype": "beartype"}
"""Distributions and their modules; another distribution, such as a build for another device, may give the module."""
OF_TESTS = ("pytest",)
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def packages() -> dict[str, Any]:
    """Return versions of what Trinity requires and may use, and what is missing or of another version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str | None] = {}
    missing, other = [], []
    for line in (*project["dependencies"], *OF_TESTS):
        name = _NAME.match(line).group()  # type: ignore[union-attr]
        found[name] = version_of(name)
        if found[name] is None:
            missing.append(line.split("#")[0].strip())
        elif not _fits(line, str(found[name])):
            other.append(f"{line} is needed, {found[name]} is installed")
    optional = {name: _of_module(name, module) for name, module in OPTIONAL.items()}
    return {
        "required": found,
        "optional": optional,
        "missing_required": missing,
        "other_versions": other,
        "missing_optional": [name for name, there in optional.items() if there is None],
    }


def version_of(name: str) -> str | None:
    """Return the installed version of a distribution, None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _of_module(name: str, module: str) -> str | None:
    return version_of(name) or ("installed" if find_spec(module) is not None else None)


def _fits(requirement: str, installed: str) -> bool:
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return True
    return Requirement(requirement).specifier.contains(installed, prereleases=True)


def torch_facts() -> dict[str, Any]:
    """Return what PyTorch says of itself and of the devices; why not, where it cannot be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}", "devices": []}
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "devices": [],
    }
    try:
        is_there = torch.cuda.is_available()
        for index in range(torch.cuda.device_count() if is_there else 0):
            device = torch.cuda.get_device_properties(index)
            facts["devices"].append(
                {
                    "name": device.name,
                    "memory_gib": round(device.total_memory / 2**30, 1),
                    "capability": f"{device.major}.{device.minor}",
                    "multiprocessors": device.multi_processor_count,
                }
            )
        if is_there:
            facts["nccl"] = (
                ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
            )
            facts["bfloat16"] = torch.cuda.is_bf16_supported()
            torch.ones(8, device="cuda").sum().item()  # the first kernel: a driver too old shows here
    except (RuntimeError, AssertionError) as error:
        facts["error"] = f"{type(error).__name__}: {error}"
        facts["devices"] = []
    return facts


def transformers_facts() -> dict[str, Any]:
    """Return whether transformers can be imported, and why not."""
    try:
        return {"transformers": importlib.import_module("transformers").__version__}
    except Exception as error:  # noqa: BLE001  whatever it is, it belongs into the report
        return {"transformers": None, "transformers_error": f"{type(error).__name__}: {error}"}


def driver() -> str | None:
    """Return the version of NVIDIA's driver."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.strip().splitlines()[0] if told.returncode == 0 and told.stdout.strip() else None


def facts() -> dict[str, Any]:
    """Return all facts."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        {
            "python": platform.python_version(),
            "executable": sys.executable,
            "platform": platform.platform(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(memory / 2**30, 1),
            "driver": driver(),
            "packages": packages(),
        }
        | torch_facts()
        | transformers_facts()
    )


if __name__ == "__main__":
    print(json.dumps(facts()))
