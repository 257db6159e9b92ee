"""Settings of the process that must stand before torch is loaded.

Float sums depend on the number of threads and on the code path of the math library, so a deterministic run fixes
both. `trinity.launch.facts` records the result.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from trinity.utils.cores import available_cores
from trinity.utils.memory import keep_freed_memory

PARALLEL_TOKENIZERS = "TOKENIZERS_PARALLELISM"
VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    PARALLEL_TOKENIZERS,
    "MKL_CBWR",
    "CUBLAS_WORKSPACE_CONFIG",
)
"""All that `prepare_process` sets in the environment."""

# Below this hidden size one matrix product is too small to share between threads.
SMALL_HIDDEN_SIZE = 512


def hidden_size(model_path: str) -> int | None:
    """Return `hidden_size` of a local model folder's config.json.

    `None` if it cannot be read.
    """
    try:
        config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    size = config.get("hidden_size") or config.get("n_embd")
    return size if isinstance(size, int) else None


def prepare_process(model_path: str, *, deterministic: bool) -> None:
    """Set thread count and math-library settings in the environment.

    Values that the user set are kept.

    MKL reads its setting at its first product; whether that was before is seen in `trinity.launch.facts` alone.

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
        PARALLEL_TOKENIZERS: "false",
    }
    if deterministic:
        defaults |= {"MKL_CBWR": "AUTO", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    for name, value in defaults.items():
        os.environ[name] = os.environ.get(name) or value
    keep_freed_memory()
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))


def use_deterministic_algorithms() -> None:
    """Make torch refuse operations without a deterministic implementation."""
    import torch

    torch.use_deterministic_algorithms(True)
    # The filling of new tensors is a help for finding code that reads them unwritten; it costs a tenth of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
