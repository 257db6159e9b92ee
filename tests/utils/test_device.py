from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from trinity.utils.device import (
    compute_dtype,
    has_bf16_units,
    is_out_of_memory,
    peak_memory_bytes,
    select_device,
    synchronize,
    thread_settings,
    total_memory_bytes,
)

CPU = torch.device("cpu")


def test_auto_is_cuda_where_there_is_one_else_the_cpu() -> None:
    assert select_device("cpu") == CPU
    assert select_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_an_unknown_device_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="auto, cpu, cuda, got 'tpu'"):
        select_device("tpu")


def test_auto_number_type_follows_the_hardware() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    wanted = torch.bfloat16 if flags & {"amx_bf16", "avx512_bf16"} else torch.float32
    assert compute_dtype("auto", CPU) == wanted
    assert has_bf16_units(CPU) == (wanted == torch.bfloat16)
    assert compute_dtype("float16", CPU) == torch.float16
    with pytest.raises(ValueError, match="got 'int8'"):
        compute_dtype("int8", CPU)


def test_memory_of_this_machine() -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 2**28 < total_memory_bytes(CPU) <= physical
    assert peak_memory_bytes(CPU) == 0
    synchronize(CPU)


def test_thread_settings_name_what_decides_the_last_bits() -> None:
    settings = thread_settings()
    assert settings["num_threads"] == torch.get_num_threads()
    assert settings["torch"] == torch.__version__


def test_lack_of_memory_is_told_from_other_errors() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))
