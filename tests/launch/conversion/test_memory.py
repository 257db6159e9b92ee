"""The memory of an export is that of one file, however large the checkpoint is."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.verl_checkpoints import Written
from trinity.common.models.shards import read_rank, shard_files
from trinity.launch.conversion.exporting import ExportRequest, export_checkpoint

SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "num_key_value_heads": 8}
MIB = 2**20


def write_two_ranks(folder: Path, verl: Written) -> int:
    """Write a checkpoint of two ranks with the mesh of another one; return its bytes."""
    config = LlamaConfig(vocab_size=64, num_hidden_layers=8, tie_word_embeddings=False, **SIZES)
    with torch.device("meta"):
        like = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).state_dict()
    folder.mkdir(parents=True)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder / "huggingface")
    mesh: Any = next(iter(read_rank(shard_files(verl.plain[2] / "global_step_3" / "actor")[0]).values()))
    for rank in range(2):
        state = {}
        for name, tensor in like.items():
            part = torch.full((len(tensor) // 2, *tensor.shape[1:]), float(rank), dtype=tensor.dtype)
            meta = mesh._spec.tensor_meta._replace(shape=tensor.shape, stride=tensor.stride(), dtype=tensor.dtype)
            spec = type(mesh._spec)(mesh._spec.mesh, mesh._spec.placements, meta)
            state[name] = DTensor(part, spec, requires_grad=False)
        torch.save(state, folder / f"model_world_size_2_rank_{rank}.pt")
    return sum(tensor.nbytes for tensor in like.values())


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read from Linux's /proc"
)
def test_the_peak_is_a_few_files_and_not_the_checkpoint(verl: Written, tmp_path: Path) -> None:
    whole = write_two_ranks(tmp_path / "global_step_1" / "actor", verl)
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:  # the peak is that of a process of its own, from here on
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        export_checkpoint(ExportRequest(tmp_path / "global_step_1", tmp_path / "out", max_shard_size="12MB"))
        os.write(writing, json.dumps(_status("VmHWM") - before).encode())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    peak = json.loads(os.read(reading, 100))
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    largest = max(file.stat().st_size for file in files)
    assert len(files) > 15 and whole > 200 * 10**6
    bound = 32 * MIB + 3 * largest  # a file, its parts where they are mapped, and what reading and writing take
    assert peak < bound < 0.4 * whole, (peak / MIB, largest / MIB, whole / MIB)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
