"""The strict device as PyTorch sees it: its module `torch.strict`, and its installation in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.strict_device import autocast, kernels
from tests.strict_device.memory import DEVICE, NAME

_held: list[torch.library.Library] = []


class Module:
    """What `torch.cuda` is for CUDA, as far as Trinity or PyTorch ask for it."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        assert torch.device(device).index in (None, 0)

    def synchronize(self, device: Any = None) -> None:
        kernels.Waits.count += 1

    def empty_cache(self) -> None:
        pass

    def get_device_name(self, device: Any = None) -> str:
        return NAME

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name=NAME, total_memory=2**32)

    def max_memory_allocated(self, device: Any = None) -> int:
        return 2**20

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed(self, seed: int) -> None:
        kernels.Noise.generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = NAME) -> Tensor:
        return kernels.Noise.generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = NAME) -> None:
        kernels.Noise.generator.set_state(state)


def install() -> torch.device:
    """Give PyTorch the device for the rest of this process; return it.

    Call it before the first backward pass: PyTorch starts its threads of devices then, and later devices have none.
    """
    if not _held:
        _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
        # `Module.to` keeps its parameters by `.data` on CUDA, which PyTorch does not allow from this device to the CPU.
        torch.__future__.set_swap_module_params_on_conversion(True)
        _held.extend([*kernels.register(), *autocast.register()])
    return DEVICE


def synchronizations() -> int:
    """Return how often the host has waited for the device."""
    return kernels.Waits.count


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Do what `torch.use_deterministic_algorithms` does, without its import of the compiler, which takes seconds."""
    torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
