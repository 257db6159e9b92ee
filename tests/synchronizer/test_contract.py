"""What both forms of the synchronizer promise: within a run, and through the folder of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.synchronizer.test_folder import side
from tests.synchronizer.test_synchronizer import WeightHolder, make
from trinity.buffer.store import ExperienceStore
from trinity.common.errors import SyncError
from trinity.synchronizer.base import Synchronizer
from trinity.synchronizer.publisher import Publisher
from trinity.synchronizer.served import ServedWeights
from trinity.synchronizer.transport import CheckpointTransport, MemoryTransport

NAME = "walker"


@dataclass
class Meeting:
    """A synchronizer as each side sees it, with the trainer's publisher and the explorer's engine."""

    trainer: Synchronizer
    explorer: Synchronizer
    publisher: Publisher
    served: ServedWeights


@pytest.fixture(params=["local", "folder"])
def meeting(request: Any, tmp_path: Path) -> Iterator[Meeting]:
    engine: Any = WeightHolder()
    with ExperienceStore(f"sqlite:///{tmp_path}/store.db") as store:
        if request.param == "local":
            trainer = explorer = make()
            publisher = Publisher(trainer, MemoryTransport())
        else:
            trainer, explorer = side(tmp_path, store, "trainer"), side(tmp_path, store)
            publisher = Publisher(trainer, CheckpointTransport(tmp_path))
        yield Meeting(trainer, explorer, publisher, ServedWeights(explorer, engine, explorer=NAME))


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3,), value)}


def test_whoever_waits_for_a_version_serves_its_values(meeting: Meeting) -> None:
    async def explore() -> list[float]:
        seen = []
        for version in (1, 2):
            assert await meeting.explorer.wait_for_version(version, explorer=NAME) >= version
            await meeting.served.take_newest()
            seen.append(meeting.served.engine.weights["w"][0].item())  # type: ignore[attr-defined]
            assert meeting.served.pop_times()["perf/sync_bytes"] > 0
            await meeting.served.take_newest()
            assert meeting.served.pop_times() == {}, "what is served is not loaded again"
            loaded.set()
        return seen

    async def train() -> None:
        for version in (1, 2):
            await meeting.publisher.publish(version, weights(version))
            await loaded.wait()
            loaded.clear()

    async def run() -> list[float]:
        await meeting.publisher.restore(0, None, explorer=NAME, weights={})
        return (await asyncio.gather(explore(), train()))[0]

    loaded = asyncio.Event()
    assert asyncio.run(run()) == [1.0, 2.0]


def test_nothing_is_there_before_the_first_version(meeting: Meeting) -> None:
    async def run() -> None:
        assert await meeting.explorer.newest() == (0, "")
        assert not await meeting.explorer.is_trainer_finished()
        assert not await meeting.trainer.is_requested() and not await meeting.trainer.is_explorer_expected()
        await meeting.served.take_newest()
        assert meeting.served.engine.model_version == 0
        with pytest.raises(SyncError, match="E5502.*versions at hand: none"):
            await meeting.explorer.fetch(7, explorer=NAME)
        with pytest.raises(SyncError, match=r"E5501.*synchronizer\.sync_timeout"):
            await meeting.explorer.wait_for_version(7, timeout_s=0.05, explorer=NAME)

    asyncio.run(run())


def test_the_trainers_end_ends_every_wait_with_its_last_version(meeting: Meeting) -> None:
    async def run() -> list[int]:
        await meeting.publisher.restore(0, None, explorer=NAME, weights={})
        await meeting.publisher.publish(4, weights(4))
        waits = (
            meeting.explorer.wait_for_version(100, explorer=NAME),
            meeting.explorer.request(100, explorer=NAME),
            meeting.explorer.wait_for_trainer(),
        )
        ended, _ = await asyncio.gather(asyncio.gather(*waits), meeting.trainer.finish_trainer())
        assert await meeting.explorer.is_trainer_finished()
        return ended

    assert asyncio.run(run()) == [4, 4, 4]
