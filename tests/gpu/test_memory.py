"""What is told when a card has no memory left: real allocations that the driver's limit refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.engine.engines import engine, run
from tests.gpu.parts import config_of, worker_on
from tests.tiny import tiny_model
from tests.trainer.conftest import make_experiences
from trinity.common.errors import OutOfMemoryError
from trinity.trainer.verl.worker import OOM_KEYS

pytestmark = pytest.mark.gpu
LARGE = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8}


@contextmanager
def room_for(more_bytes: int) -> Iterator[None]:
    """Let this process have so many bytes of the card beside what it holds."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more_bytes) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_step_that_does_not_fit_shows_what_is_held_and_the_keys(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model", "llama", scale=1.0, **LARGE)
    config = config_of(tmp_path / "model", actor={"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 2048})
    worker = worker_on(torch.device("cuda"), config)
    few, many = make_experiences(1), make_experiences(2, tasks=64, repeats=32)
    assert worker.train_step(few, 1)["actor/grad_norm"] > 0
    with room_for(64 * 2**20), pytest.raises(OutOfMemoryError) as caught:
        worker.train_step(many, 2)
    for text in ("out of memory on cuda:0 in training step 2", "parameters", "most held by PyTorch", *OOM_KEYS):
        assert text in str(caught.value)
    assert worker.train_step(few, 2)["actor/grad_norm"] > 0, "the worker continues"


def test_an_engine_whose_weights_do_not_fit_names_the_explorers_keys(tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama", scale=1.0, **LARGE)

    async def call() -> None:
        async with engine(tmp_path, device="cuda"):
            raise AssertionError("an engine was made that does not fit")

    torch.zeros((), device="cuda")
    with room_for(8 * 2**20), pytest.raises(OutOfMemoryError, match="max_num_seqs"):
        run(call())


def test_an_engine_whose_cache_does_not_fit_names_the_explorers_keys(tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama", scale=1.0, **LARGE, max_position_embeddings=8192)

    async def call() -> None:
        async with engine(tmp_path, device="cuda", model={"max_model_len": 4096}, max_num_seqs=64) as made:
            with room_for(32 * 2**20):
                await made.generate("1+1=", n=64, max_tokens=4000, min_tokens=4000, ignore_eos=True)

    with pytest.raises(OutOfMemoryError, match="cache of all sequences"):
        run(call())
