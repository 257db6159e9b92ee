"""The folder of a job as the meeting point of explorers and a trainer."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.buffer.store.oracle import experience
from tests.synchronizer.test_synchronizer import WeightHolder
from trinity.buffer.store import ExperienceStore
from trinity.common.config import Config
from trinity.common.errors import CheckpointError, SyncError
from trinity.synchronizer.folder import STATE_FILE, FolderSynchronizer, TrainerNews
from trinity.synchronizer.publisher import Publisher
from trinity.synchronizer.served import ServedWeights
from trinity.synchronizer.transport import CheckpointTransport
from trinity.trainer.verl.loading import checkpoint_weights
from trinity.utils.locks import FileLock, is_held, note_of, part_lock

SCOPE = {"run": "p/n", "stage": ""}
WEIGHTS = {"w": torch.arange(4.0)}


@pytest.fixture
def store(tmp_path: Path):
    with ExperienceStore(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened


def side(folder: Path, store: ExperienceStore, name: str = "", timeout_s: float = 5.0) -> FolderSynchronizer:
    news = TrainerNews(name=name, interval=2, offset=1, rollouts_per_step=4)
    return FolderSynchronizer(folder, store, buffer="b", scope=SCOPE, timeout_s=timeout_s, news=news)


@pytest.mark.parametrize(
    ("rollouts", "interval", "offset", "version"),
    [(0, 1, 0, 0), (7, 1, 0, 1), (8, 1, 0, 2), (8, 1, 1, 1), (8, 1, 5, 0), (20, 2, 0, 4), (20, 2, 2, 2), (24, 5, 0, 5)],
)
def test_what_is_required_can_be_trained_from_what_is_there(rollouts: int, interval: int, offset: int, version: int):
    news = TrainerNews(interval=interval, offset=offset, rollouts_per_step=4)
    assert news.required(rollouts) == version <= rollouts // 4


@pytest.mark.difference("Several explorers apart")
def test_an_explorer_waits_by_what_all_of_them_have_made(tmp_path: Path, store: ExperienceStore):
    async def required() -> int:
        await side(tmp_path, store, "trainer").restore(0, None, tickets=(), explorer="one")
        return await side(tmp_path, store).required_version()

    made = []
    for step, producer in enumerate(("one", "two", "three", "three"), 1):
        store.open_producer("b", producer, **SCOPE)
        rows = [experience(step, task) for task in range(4)]
        store.append("b", rows, producer=producer, explore_step=step, **SCOPE)
        made.append(asyncio.run(required()))
    assert made == [0, 0, 2, 2], "training steps of 4 rollouts less the offset of 1, in steps of the interval of 2"


def test_versions_reach_another_side_and_a_restart_takes_back_what_was_lost(tmp_path: Path, store: ExperienceStore):
    async def run() -> None:
        trainer, explorer = side(tmp_path, store, "trainer"), side(tmp_path, store)
        publisher = Publisher(trainer, CheckpointTransport(tmp_path))
        await publisher.restore(0, None, weights={}, explorer="explorer")
        waiting = asyncio.ensure_future(explorer.wait_for_version(2, explorer="explorer"))
        for version in (2, 4, 6):
            await publisher.publish(version, {"w": WEIGHTS["w"] + version})
        assert await waiting >= 2 and await explorer.newest_version() == 6
        assert publisher.transport.versions() == [4, 6], "an explorer may be about to read the one before"
        assert (await explorer.fetch(6, explorer="explorer")).version == 6
        with pytest.raises(SyncError, match=r"versions at hand: \[4, 6\]"):
            await explorer.fetch(2, explorer="explorer")
        await publisher.restore(4, None, weights={4: WEIGHTS}, explorer="explorer")
        assert await explorer.newest_version() == 4 and publisher.transport.versions() == [4]
        assert not await explorer.is_trainer_finished()
        await trainer.finish_trainer()
        assert await explorer.wait_for_version(100, explorer="explorer") == await explorer.wait_for_trainer() == 4

    asyncio.run(run())


@pytest.mark.parametrize("is_delta", [False, True])
@pytest.mark.parametrize("kept", [0, 2, 4])
def test_a_number_that_a_rewound_trainer_gives_again_brings_the_new_weights(
    tmp_path: Path, store: ExperienceStore, kept: int, is_delta: bool
):
    async def run() -> None:
        engine: Any = WeightHolder()
        served = ServedWeights(side(tmp_path, store), engine, explorer="explorer")

        async def publish(publisher: Publisher, version: int, by: float) -> None:
            await publisher.publish(version, {"w": WEIGHTS["w"] * by})

        lost = Publisher(side(tmp_path, store, "trainer"), CheckpointTransport(tmp_path, is_delta=is_delta))
        await lost.restore(0, None, weights={}, explorer="explorer")
        for version in (2, 4, 6):
            await publish(lost, version, version)
        await served.take_newest()
        assert engine.model_version == 6 and torch.equal(engine.weights["w"], WEIGHTS["w"] * 6)

        # Killed, and continued from an older checkpoint; the explorer looks only when the number is there again.
        again = Publisher(side(tmp_path, store, "trainer"), CheckpointTransport(tmp_path, is_delta=is_delta))
        await again.restore(kept, None, weights={kept: {"w": WEIGHTS["w"] * kept}}, explorer="explorer")
        for version in range(kept + 2, 8, 2):
            await publish(again, version, version + 100)
        await served.take_newest()
        assert engine.model_version == 6 and torch.equal(engine.weights["w"], WEIGHTS["w"] * 106)
        assert served.pop_times()["perf/sync_bytes"] > 0
        await served.take_newest()
        assert served.pop_times() == {}, "what it serves is not read again"

        # And back behind all that was published: the explorer does not continue with what is lost.
        await again.restore(kept, None, weights={kept: {"w": WEIGHTS["w"] * kept}}, explorer="explorer")
        await served.take_newest()
        assert engine.model_version == kept and torch.equal(engine.weights["w"], WEIGHTS["w"] * kept)

    asyncio.run(run())


@pytest.mark.parametrize("is_delta", [False, True])
@pytest.mark.parametrize("kept", [0, 2, 4])
def test_whenever_a_trainer_removes_or_replaces_a_version_the_newest_can_be_read(
    tmp_path: Path, store: ExperienceStore, kept: int, is_delta: bool, monkeypatch: pytest.MonkeyPatch
):
    """An explorer looks again after every removal of a folder, with the removals still to come."""
    looks: list[int] = []

    def look() -> None:
        engine: Any = WeightHolder()
        monkeypatch.setattr("trinity.synchronizer.served.PULL_ATTEMPTS", 1)
        asyncio.run(ServedWeights(side(tmp_path, store), engine, explorer="explorer").take_newest())
        looks.append(engine.model_version)

    def removing(path: Path, **how: Any) -> None:
        shutil.rmtree(path, **how)
        with ThreadPoolExecutor(1) as thread:  # which has no event loop yet
            thread.submit(look).result()

    async def publish(publisher: Publisher, *versions: int) -> None:
        for version in versions:
            await publisher.publish(version, {"w": WEIGHTS["w"] * version})

    async def run() -> None:
        lost = Publisher(side(tmp_path, store, "trainer"), CheckpointTransport(tmp_path, is_delta=is_delta))
        await lost.restore(0, None, weights={}, explorer="explorer")
        await publish(lost, 2, 4, 6)
        looks.clear()
        again = Publisher(side(tmp_path, store, "trainer"), CheckpointTransport(tmp_path, is_delta=is_delta))
        await again.restore(kept, None, weights={kept: {"w": WEIGHTS["w"] * kept}}, explorer="explorer")
        assert looks and looks[-1] == kept and set(looks) <= {6, kept}
        await publish(again, *range(kept + 2, 8, 2))

    for module in ("common.weights.files", "synchronizer.transport"):
        monkeypatch.setattr(f"trinity.{module}.shutil", SimpleNamespace(rmtree=removing))
    asyncio.run(run())


def test_what_a_trainer_of_version_0_1_has_said_is_read(tmp_path: Path, store: ExperienceStore):
    said = {"interval": 2, "is_finished": False, "name": "trainer", "offset": 1, "rollouts_per_step": 4, "version": 6}
    (tmp_path / STATE_FILE).write_text(json.dumps(said))
    assert asyncio.run(side(tmp_path, store).newest()) == (6, "")


def test_a_wait_ends_at_its_deadline_and_says_that_nobody_is_there(
    tmp_path: Path, store: ExperienceStore, caplog: pytest.LogCaptureFixture
):
    async def run() -> None:
        explorer = side(tmp_path, store, timeout_s=0.2)
        with pytest.raises(SyncError, match="waiting for version 2 .*no trainer is running.*sync_timeout") as found:
            await explorer.wait_for_version(2, explorer="explorer")
        assert found.value.code == "E5501"
        lock = part_lock(tmp_path, "trainer")
        lock.parent.mkdir()
        held = FileLock(lock, note="trinity run --config trainer.yaml")
        await side(tmp_path, store, "trainer").restore(0, None, tickets=(), explorer="explorer")
        with pytest.raises(SyncError, match="it is running"):
            await explorer.wait_for_version(2, explorer="explorer")
        held.release()
        explorer.timeout_s = 1.5
        with caplog.at_level(logging.WARNING), pytest.raises(SyncError):
            await explorer.wait_for_version(2, explorer="explorer")
        assert caplog.text.count("start it again: trinity run --config trainer.yaml") == 1
        (tmp_path / STATE_FILE).write_text('{"version": 2')
        with pytest.raises(SyncError, match="start the trainer again") as torn:
            await explorer.newest_version()
        assert torn.value.code == "E7041"

    asyncio.run(run())


def test_an_explorer_that_starts_or_explores_is_waited_for_and_other_components_are_not(
    tmp_path: Path, store: ExperienceStore
):
    async def run() -> None:
        trainer = side(tmp_path, store, "trainer")
        part_lock(tmp_path, "").parent.mkdir()
        held = [FileLock(part_lock(tmp_path, name)) for name in ("trainer", "bench")]
        assert not await trainer.is_explorer_expected()
        held.append(FileLock(part_lock(tmp_path, "late"), note="come back"))
        assert await trainer.is_explorer_expected()
        store.open_producer("b", "late", **SCOPE)
        assert await trainer.is_explorer_expected()
        store.close_producer("b", "late", **SCOPE)
        assert not await trainer.is_explorer_expected()
        for lock in held:
            lock.release()
        assert not is_held(part_lock(tmp_path, "late")) and note_of(part_lock(tmp_path, "late")) == "come back"

    asyncio.run(run())


def test_a_snapshot_is_kept_for_each_explorer(tmp_path: Path, store: ExperienceStore):
    async def run() -> None:
        explorer = side(tmp_path, store)
        await explorer.report_explorer({"explore_step": 3}, explorer="late")
        assert store.snapshot("b", "late", **SCOPE) == '{"explore_step": 3}'
        assert store.snapshot("b", "other", **SCOPE) is None and store.num_produced("b", **SCOPE) == 0

    asyncio.run(run())


def test_a_checkpoint_without_weights_cannot_be_evaluated(tmp_path: Path):
    with pytest.raises(CheckpointError, match="cannot read the policy") as found:
        checkpoint_weights(tmp_path, Config())
    assert found.value.code == "E7043"
