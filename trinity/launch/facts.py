"""Facts of a process that decide float results.

They are recorded as in force and compared with those of other processes.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from trinity.common.errors import CheckpointError, EnvironmentProblem
from trinity.utils.log import get_logger

logger = get_logger("launch")

FRESH_S = 300.0
"""Longest wait for a fresh process, which takes seconds to load torch."""

_PROGRAM = (
    "import json, sys; sys.path[:] = sys.argv[1:]; from trinity.launch.facts import process_facts; "
    "print(json.dumps(process_facts()))"
)
# Beginnings of the variables that torch and its libraries read.
_READ = ("OMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "NVIDIA_")


def process_facts() -> dict[str, Any]:
    """Return the facts of this process that decide float results.

    They are versions, threads, code paths, and bits of known results.
    """
    import torch

    from trinity.utils.arithmetic import fingerprint, mkl_cbwr
    from trinity.utils.products import prefers_onednn

    has_cuda = torch.cuda.is_available()
    return {
        "torch": str(torch.__version__),  # a process without torch can read it then
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "float32_products": "onednn" if prefers_onednn() else "default",
        "mkl_cbwr": mkl_cbwr(),
        "known_results": fingerprint(),
        "device": torch.cuda.get_device_name() if has_cuda else "cpu",
        "cuda_float32": torch.backends.cuda.matmul.fp32_precision if has_cuda else "",
    }


def check_same_facts(recorded: Mapping[str, Any], present: Mapping[str, Any], *, deterministic: bool) -> None:
    """Compare the facts of the resumed run with those of this process.

    Raises:
        CheckpointError: they differ and the run is deterministic (E7030).
    """
    text = _differences(recorded, present)
    if not text:
        return
    if deterministic:
        raise CheckpointError(
            f"deterministic: true needs the process that the run began with, but {text}; "
            f"restore it (OMP_NUM_THREADS, MKL_CBWR, package versions, machine), or set deterministic: false",
            code="E7030",
        )
    logger.warning("this process differs from the one that began the run: %s", text)


def compute_as_the_command() -> None:
    """Make this process compute like one that the command starts.

    It is for processes that loaded torch before the run.

    The environment must stand. The number of threads is taken over; what else differs cannot be changed any more, or
    is what somebody asked torch for.

    Raises:
        EnvironmentProblem: known results or code paths differ (E3303), or no process can be started (E3304).
    """
    import torch

    read = {name: value for name, value in os.environ.items() if name.startswith(_READ)}
    command = json.loads(_facts_of_a_fresh_process(json.dumps(read, sort_keys=True)))
    torch.set_num_threads(command["threads"])
    text = _differences(command, process_facts())
    if text:
        raise EnvironmentProblem(
            f"deterministic: true gives the weights of `trinity run`, but this process, which used torch before the "
            f"run, computes otherwise: {text} (a fresh process -> this one). MKL reads MKL_CBWR at the first product: "
            "set MKL_CBWR=AUTO before Python starts and leave torch's own settings as they are, or use the command "
            "`trinity run`, or set deterministic: false",
            code="E3303",
        )


@functools.cache
def _facts_of_a_fresh_process(_read: str) -> str:
    """Return as JSON the facts of a process with this environment.

    `_read` has the variables that the process reads; it is the key of the cache.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FRESH_S,
        )
        trouble = "" if done.returncode == 0 else f"exit code {done.returncode}, {done.stderr.strip()[-500:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    if trouble:
        raise EnvironmentProblem(
            "deterministic: true in a process that has loaded torch compares it with a fresh one, but the Python "
            f"{sys.executable!r} did not run: {trouble}; use the command `trinity run`, or set deterministic: false",
            code="E3304",
        )
    return done.stdout.splitlines()[-1]


def _differences(wanted: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    changes = {key: (wanted[key], present.get(key)) for key in wanted if wanted[key] != present.get(key)}
    return ", ".join(f"{key} {old!r} -> {new!r}" for key, (old, new) in changes.items())
