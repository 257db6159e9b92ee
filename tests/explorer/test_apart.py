"""An explorer and a trainer apart, which meet in the files of a job, under a bound on staleness."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.buffer.store.oracle import experience
from tests.explorer.test_admission import call, config_of
from tests.synchronizer.test_synchronizer import WeightHolder
from trinity.buffer.store import ExperienceStore
from trinity.common.config import Config
from trinity.explorer.admission import BoundedAdmission
from trinity.explorer.assembly import experience_buffer, store_scope
from trinity.explorer.producer import Producer
from trinity.synchronizer.folder import FolderSynchronizer, TrainerNews
from trinity.synchronizer.publisher import Publisher
from trinity.synchronizer.schedule import DynamicSchedule, sync_schedule
from trinity.synchronizer.served import ServedWeights
from trinity.synchronizer.transport import CheckpointTransport

ROLLOUTS, STEPS = 8, 7


async def explore(config: Config, store: ExperienceStore, synchronizer: FolderSynchronizer, *, pause_s: float) -> None:
    """Append steps until the trainer has finished; ask `pause_s` after each."""
    buffer, scope, schedule = experience_buffer(config), store_scope(config), sync_schedule(config)
    assert isinstance(schedule, DynamicSchedule)
    engine: Any = WeightHolder()
    served = ServedWeights(synchronizer, engine, explorer="explorer")
    producer = Producer(store, call, buffer=buffer, name="explorer", scope=scope)
    admission, step = BoundedAdmission(config, schedule, served=served, producer=producer), 1
    while await admission.admit(step):
        rows = [experience(step, task, run, version=engine.model_version) for task in range(2) for run in range(4)]
        store.append(buffer, rows, producer="explorer", explore_step=step, **scope)
        await asyncio.sleep(pause_s)
        step += 1


async def train(
    config: Config, store: ExperienceStore, synchronizer: FolderSynchronizer, *, interval: int, folder: Path
) -> list[list[int]]:
    """Train `STEPS` steps, and publish after every `interval`; return the ages of what each had."""
    buffer, scope, ages = experience_buffer(config), store_scope(config), []
    publisher = Publisher(synchronizer, CheckpointTransport(folder))
    token = store.open_consumer(buffer, "trainer", cut=0, **scope)
    for step in range(1, STEPS + 1):
        batch = await call(store.read_batch, token, ROLLOUTS, timeout_s=60, trained_version=step - 1)
        ages.append([step - 1 - exp.info["model_version"] for exp in batch.experiences])
        store.commit_step(token, step, [exp.eid.uid for exp in batch.experiences])
        if step % interval == 0:
            await publisher.publish(step, {"w": torch.full((2,), float(step))})
    await synchronizer.finish_trainer()
    return ages


@pytest.mark.parametrize("interval", [1, 2, 3])
@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_no_side_waits_for_a_version_that_is_not_published(tmp_path: Path, interval: int, pause_s: float) -> None:
    """Every step is a full one under the bound that follows from the interval, whenever the explorer asks."""
    config = config_of(ROLLOUTS, mode="explore", sync_interval=interval)
    buffer, scope = experience_buffer(config), store_scope(config)
    news = {name: TrainerNews(name=name, interval=interval, rollouts_per_step=ROLLOUTS) for name in ("trainer", "")}

    async def run() -> list[list[int]]:
        with ExperienceStore(f"sqlite:///{tmp_path}/e.db") as store:
            of_trainer, of_explorer = (
                FolderSynchronizer(tmp_path, store, buffer=buffer, scope=scope, timeout_s=60.0, news=each)
                for each in news.values()
            )
            await of_trainer.restore(0, None, tickets=(), explorer="explorer")
            store.open_producer(buffer, "explorer", **scope)
            exploring = asyncio.create_task(explore(config, store, of_explorer, pause_s=pause_s))
            ages = await train(config, store, of_trainer, interval=interval, folder=tmp_path)
            await exploring
            return ages

    ages, limit = asyncio.run(run()), config.synchronizer.max_staleness
    assert [len(each) for each in ages] == [ROLLOUTS] * STEPS
    assert limit == interval and max(map(max, ages)) <= limit
