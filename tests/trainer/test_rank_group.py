"""Ranks in processes of their own behind the trainer's loop: as one worker, and what happens when one is lost."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch

from tests.trainer.conftest import make_experiences
from tests.trainer.test_trainer import Run, live_weights
from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config
from trinity.common.errors import ExitCode, TrinityError
from trinity.runtime.local import LocalRuntime
from trinity.trainer.backend import TrainerBackend
from trinity.trainer.rank_group import RankGroup

Maker = Callable[..., Config]
SGD = {"optimizer": {"optimizer_type": "sgd", "lr": 0.3}, "kl_loss_fn": "k3", "kl_loss_fn_args": {"kl_coef": 0.05}}


def _config(make_config: Maker, folder: str, **trainer: Any) -> Config:
    job = str(make_config().checkpoint_job_dir) + folder
    return make_config(algorithm=SGD, checkpoint_job_dir=job, trainer={"save_interval": 2, **trainer})


async def _kill_after(run: Run, step: int) -> None:
    """Kill the second rank once the checkpoint of `step` is there."""
    while step not in run.trainer.checkpoints.steps():
        await asyncio.sleep(0.005)
    assert isinstance(run.trainer.backend, RankGroup)
    os.kill(run.trainer.backend.handles[1].pid, signal.SIGKILL)


@pytest.mark.nightly
def test_a_killed_rank_ends_the_run_by_name_and_one_worker_goes_on_from_its_checkpoint(make_config: Maker) -> None:
    alone = Run(_config(make_config, "-alone", total_steps=4))
    alone.train(lambda run: run.explore(range(1, 5)))
    first = Run(_config(make_config, "-ranks", total_steps=4, num_workers=2))
    killers = []

    def begin(run: Run) -> None:
        run.explore(range(1, 5))
        killers.append(asyncio.get_running_loop().create_task(_kill_after(run, 2)))

    with pytest.raises(TrinityError, match="trainer_rank_1.*SIGKILL") as caught:
        first.train(begin)
    assert (caught.value.code, caught.value.exit_code) == ("E5701", ExitCode.RUNTIME)
    checkpoint = CheckpointStore(first.job).latest()
    assert checkpoint is not None and (checkpoint / "actor" / "optim_world_size_2_rank_1.pt").is_file()
    second = Run(_config(make_config, "-ranks", total_steps=4), resume=True)
    second.train()
    for expected, found in zip(alone.lines(), second.lines(), strict=True):
        assert found == {k: pytest.approx(v, rel=1e-4, abs=1e-6) if isinstance(v, float) else v
                         for k, v in expected.items()}  # fmt: skip
    weights = live_weights(second)
    assert max(float((t - weights[n]).abs().max()) for n, t in live_weights(alone).items()) < 1e-6


def listening_places(pid: int) -> list[str]:
    """Return the addresses at which a process listens."""
    return [c.laddr.ip for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def is_loopback(place: str) -> bool:
    return ipaddress.ip_address(place.removeprefix("::ffff:")).is_loopback


async def _group(config: Config, work: Callable[[RankGroup], Any]) -> Any:
    runtime = LocalRuntime()
    group = RankGroup(config, runtime=runtime, world=2, device="cpu")
    assert isinstance(group, TrainerBackend)
    try:
        await group.prepare(total_steps=100)
        return await work(group)
    finally:
        pids = [handle.pid for handle in group.handles]
        await group.close()
        await runtime.close()
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.nightly
def test_ranks_give_their_weights_and_one_that_hangs_ends_the_step_within_its_deadline(make_config: Maker) -> None:
    stopped = 0.0

    async def work(group: RankGroup) -> None:
        nonlocal stopped
        listening = [place for handle in group.handles for place in listening_places(handle.pid)]
        assert listening and all(is_loopback(place) for place in listening), listening
        before = {name: tensor.clone() for name, tensor in (await group.weights()).items()}
        assert len(before) > 10 and before["model.embed_tokens.weight"].dim() == 2
        metrics = await group.train_step(make_experiences(1), 1)
        assert metrics["actor/grad_norm"] > 0 and group.is_healthy() and group.reference()["hash"]
        after = await group.weights()
        assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())
        os.kill(group.handles[1].pid, signal.SIGSTOP)
        stopped = time.monotonic()
        await group.train_step(make_experiences(2), 2)

    with pytest.raises(TrinityError, match="trainer_rank_1 .process .* does not answer.*rank_timeout 10 s") as caught:
        asyncio.run(_group(_config(make_config, "-stopped", rank_timeout=10.0), work))
    assert caught.value.code == "E5683" and time.monotonic() - stopped < 30.0
