"""Devices: choice, fast data types, memory and threads.

What is asked of an accelerator is asked of its module, `torch.<name>`, whose functions have the names of those of
`torch.cuda`. Code that is only about "not the CPU" asks for `cpu`; `cuda` is for what CUDA alone has.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

ACCELERATORS: tuple[str, ...] = ("cuda",)
"""Names of the accelerators that may compute, the preferred one first; only what is tested stands here."""


def select_device(name: str = "auto") -> torch.device:
    """Return the device that computes.

    `auto` is the first available accelerator, else the CPU.

    Raises:
        ValueError: not auto, cpu or one of `ACCELERATORS`, or an accelerator was asked for and is not there.
    """
    names = ("auto", "cpu", *ACCELERATORS)
    if name not in names:
        raise ValueError(f"device must be one of {', '.join(names)}, got {name!r}")
    for accelerator in available_accelerators() if name != "cpu" else ():
        if name in ("auto", accelerator):
            return torch.device(accelerator, torch.get_device_module(accelerator).current_device())
    if name in ACCELERATORS:
        label = name.upper() if name == "cuda" else name
        raise ValueError(f"device {name} was asked for, but PyTorch sees no {label} device; use auto or cpu")
    return torch.device("cpu")


def available_accelerators() -> list[str]:
    """Return the names of the available accelerators, preferred first."""
    return [name for name in ACCELERATORS if torch.get_device_module(name).is_available()]


def has_bf16_units(device: torch.device) -> bool:
    """Return whether `device` is faster at bfloat16 than float32 matrices.

    On a CPU that takes AMX tiles or the dot products of AVX512-BF16; without them bfloat16 is emulated, and slower.
    """
    if device.type != "cpu":
        return bool(torch.get_device_module(device).is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the data type that a configuration names.

    `auto` is bfloat16 if the device computes in it.

    Raises:
        ValueError: not auto, float32, bfloat16 or float16.
    """
    if name == "auto":
        return torch.bfloat16 if has_bf16_units(device) else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ValueError(f"dtype must be auto, {', '.join(known)}, got {name!r}")
    return known[name]


def total_memory_bytes(device: torch.device) -> int:
    """Return the memory of `device` in bytes.

    It is that of the card, or of this machine (a container's limit if lower).
    """
    if device.type != "cpu":
        return int(torch.get_device_module(device).get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup_limit_bytes()
    return min(total, limit) if limit else total


def _cgroup_limit_bytes() -> int | None:
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def peak_memory_bytes(device: torch.device) -> int:
    """Return PyTorch's peak memory on an accelerator in bytes; CPU: 0."""
    return int(torch.get_device_module(device).max_memory_allocated(device)) if device.type != "cpu" else 0


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the memory that the elements of `tensors` take, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def synchronize(device: torch.device) -> None:
    """Wait for all work queued on `device`; a CPU has none."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def thread_settings() -> dict[str, str | int]:
    """Return what decides the last bits of a sum on a CPU.

    That is threads, instruction set and library versions.
    """
    return {
        "num_threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", ""),
        "mkl_num_threads": os.environ.get("MKL_NUM_THREADS", ""),
    }


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that memory is exhausted.

    It is the memory of a device or of this machine.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
