"""Settings of the process that must stand before torch is loaded, and their record.

Float sums depend on the number of threads and on the code path of the math library, so a deterministic run fixes
both, records them, and refuses to continue under others.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trinity.common.errors import CheckpointError
from trinity.utils.log import get_logger
from trinity.utils.memory import keep_freed_memory

logger = get_logger("launch")

# Below this hidden size one matrix product is too small to share between threads.
SMALL_HIDDEN_SIZE = 512


def hidden_size(model_path: str) -> int | None:
    """Return `hidden_size` of a local model folder's config.json, or `None` where it cannot be read."""
    try:
        config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    size = config.get("hidden_size") or config.get("n_embd")
    return size if isinstance(size, int) else None


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def prepare_process(model_path: str, *, deterministic: bool) -> None:
    """Set thread count and math-library settings through the environment; values that the user set stay.

    Small models run on one thread: their matrix products are shorter than a thread barrier. OpenMP threads
    sleep while they wait, since spinning on a shared core costs up to ten times the work itself.

    Args:
        model_path: folder of the model, for its size.
        deterministic: also fix the math library's code path and make CUDA's matrix products reproducible.
    """
    size = hidden_size(model_path)
    threads = 1 if size is not None and size < SMALL_HIDDEN_SIZE else available_cores()
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if deterministic:
        defaults |= {"MKL_CBWR": "AUTO", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    keep_freed_memory()
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))


def process_facts() -> dict[str, Any]:
    """Return what of this process decides float results: versions, threads, code paths."""
    import torch
    import transformers

    from trinity.utils.products import prefers_onednn

    transformers.utils.logging.disable_progress_bar()
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "float32_products": "onednn" if prefers_onednn() else "default",
        "mkl_cbwr": os.environ.get("MKL_CBWR", ""),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def use_deterministic_algorithms() -> None:
    """Make torch refuse operations without a deterministic implementation."""
    import torch

    torch.use_deterministic_algorithms(True)
    # The filling of new tensors is a help for finding code that reads them unwritten; it costs a tenth of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def check_same_facts(recorded: Mapping[str, Any], present: Mapping[str, Any], *, deterministic: bool) -> None:
    """Compare the facts of the run that is continued with those of this process.

    Raises:
        CheckpointError: they differ and the run is deterministic.
    """
    changes = {k: (recorded[k], present.get(k)) for k in recorded if recorded[k] != present.get(k)}
    if not changes:
        return
    text = ", ".join(f"{key} {old!r} -> {new!r}" for key, (old, new) in changes.items())
    if deterministic:
        raise CheckpointError(
            f"deterministic: true needs the process that the run began with, but {text}; "
            f"restore it (OMP_NUM_THREADS, MKL_CBWR, package versions, machine), or set deterministic: false",
            code="E7030",
        )
    logger.warning("this process differs from the one that began the run: %s", text)
