"""A run inside the process of a program, which continues afterwards."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from trinity.launch.process import VARIABLES
from trinity.runtime.scratch import JOB_ENV_VAR
from trinity.utils.cores import available_cores
from trinity.utils.log import ROOT, get_logger

CHANGED = (*VARIABLES, JOB_ENV_VAR)
THREADS = "OMP_NUM_THREADS"


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Give the program its settings back after the block.

    They are the environment variables that a run sets, torch's number of threads and its demand for deterministic
    algorithms, and the level of the framework's log. What the math library read once cannot be taken back.
    """
    variables, logger = _variables(), get_logger(ROOT)
    level, of_torch = logger.level, _torch_settings()
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in CHANGED:
            os.environ.pop(name, None)
        os.environ.update(variables)
        _restore_torch(of_torch or _first_settings(variables))


def _variables() -> dict[str, str]:
    return {name: os.environ[name] for name in CHANGED if name in os.environ}


def _first_settings(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a process that loads torch only now."""
    given = variables.get(THREADS, "").split(",")[0]
    threads = int(given) if given.isdigit() and int(given) else available_cores()
    return {"threads": threads, "is_deterministic": False, "warn_only": False, "fill": True}


def _torch_settings() -> dict[str, Any]:
    """Return torch's settings, nothing where it is not loaded."""
    if "torch" not in sys.modules:
        return {}
    import torch

    return {
        "threads": torch.get_num_threads(),
        "is_deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    }


def _restore_torch(settings: Mapping[str, Any]) -> None:
    if "torch" not in sys.modules:
        return
    import torch

    torch.set_num_threads(settings["threads"])
    torch.use_deterministic_algorithms(settings["is_deterministic"], warn_only=settings["warn_only"])
    torch.utils.deterministic.fill_uninitialized_memory = settings["fill"]  # type: ignore[attr-defined]
