"""The share of a micro-batch is that of the whole mini-batch, so that ranks may divide the micro-batches among them.

Each rank is a process of its own with its own model; gradients are summed by torch.distributed over gloo.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.trainer.conftest import make_experiences
from tests.trainer.test_update import MODES, TERMS, assert_same, gradients, worker
from trinity.common.config import Config
from trinity.trainer.batch import collate, micro_batches
from trinity.trainer.verl.loss import Metrics

Maker = Callable[..., Config]


def _gradients_of_rank(config: Config, rank: int, world: int) -> dict[str, Tensor]:
    """Return the gradients of every `world`-th micro-batch, beginning with number `rank`."""
    made = worker(config)
    mini = made._with_logprobs(collate(make_experiences(1, tasks=3)))
    groups = micro_batches(mini, range(len(mini)), max_tokens=None, max_rows=2)
    for rows in groups[rank::world]:
        micro = mini.select(rows)
        shares = made.loss_fn.shares(micro, mini, normalizer=made.actor.settings.normalizer)
        made.actor._micro_step(micro, shares, Metrics(), None)
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in made.model.named_parameters()}


def _run_rank(rank: int, world: int, folder: str, sections: dict[str, dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    for mode, tree in sections.items():
        own = _gradients_of_rank(Config.model_validate(tree), rank, world)
        for gradient in own.values():
            torch.distributed.all_reduce(gradient)
        if rank == 0:
            save_file({name: gradient.contiguous() for name, gradient in own.items()}, f"{folder}/{mode}.safetensors")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("world", [2, 4])
def test_the_number_of_ranks_does_not_change_the_gradient(make_config: Maker, tmp_path: Path, world: int) -> None:
    configs = {mode: make_config(algorithm={"loss_agg_mode": mode, **TERMS}) for mode in MODES}
    sections = {mode: config.model_dump(exclude_unset=True) for mode, config in configs.items()}
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_run_rank, args=(r, world, str(tmp_path), sections)) for r in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=120)
    assert [process.exitcode for process in ranks] == [0] * world
    for mode, config in configs.items():
        alone = gradients(worker(config), make_experiences(1, tasks=3))
        assert_same(alone, load_file(tmp_path / f"{mode}.safetensors"))
