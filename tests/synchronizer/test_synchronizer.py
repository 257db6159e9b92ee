"""Versions, weights and deadlines between a real explorer side and a real trainer side on one loop."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trinity.common.errors import SyncError
from trinity.common.weights import Ticket, receive, update_from
from trinity.common.weights.files import reading
from trinity.synchronizer.local import LocalSynchronizer
from trinity.synchronizer.publisher import Publisher
from trinity.synchronizer.schedule import FixedSchedule
from trinity.synchronizer.served import pull_weights
from trinity.synchronizer.transport import LATEST_FILE, CheckpointTransport, MemoryTransport, Transport


class WeightHolder:
    """The part of an engine that a synchronizer touches: its own copy of the weights and their version."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.model_version = 0

    async def update_weights(self, weights, *, version: int) -> None:
        self.weights = {name: tensor.clone() for name, tensor in weights.items()}
        self.model_version = version

    async def pull(self, ticket: Ticket) -> None:
        await update_from(ticket, self, timeout_s=5.0)


def make(timeout_s: float = 5.0, **schedule: int) -> LocalSynchronizer:
    return LocalSynchronizer(FixedSchedule(**schedule), timeout_s=timeout_s)


@pytest.fixture(params=["memory", "checkpoint"])
def transport(request, tmp_path: Path) -> Transport:
    return MemoryTransport() if request.param == "memory" else CheckpointTransport(tmp_path)


def test_explorer_gets_exactly_the_published_values_at_every_version(transport: Transport):
    async def scenario() -> list[float]:
        synchronizer, engine, live, seen = make(), WeightHolder(), {"w": torch.zeros(3)}, []
        publisher = Publisher(synchronizer, transport)

        async def explore() -> None:
            for step in range(1, 6):
                version = synchronizer.schedule.version_for(step)
                await synchronizer.wait_for_version(version, explorer="explorer")
                if version:
                    await pull_weights(synchronizer, engine, version, explorer="explorer")
                    seen.append(engine.weights["w"][0].item())
                await synchronizer.report_explorer({"explore_step": step}, explorer="explorer")

        async def train() -> None:
            for step in range(1, 5):
                live["w"] += 1
                await publisher.publish(step, live)
                await asyncio.sleep(0.01)
            await synchronizer.finish_trainer()

        await asyncio.gather(explore(), train())
        return seen

    assert asyncio.run(scenario()) == [1.0, 2.0, 3.0, 4.0]


def test_a_published_version_does_not_change_when_training_goes_on(transport: Transport):
    async def scenario() -> float:
        synchronizer, engine, live = make(offset=1), WeightHolder(), {"w": torch.ones(2)}
        await Publisher(synchronizer, transport).publish(1, live)
        live["w"] += 41
        await pull_weights(synchronizer, engine, 1, explorer="explorer")
        return engine.weights["w"][0].item()

    assert asyncio.run(scenario()) == 1.0


def test_waiting_for_a_version_that_never_comes_ends_at_the_deadline_and_names_the_setting():
    async def scenario() -> None:
        await make(timeout_s=0.05).wait_for_version(3, explorer="explorer")

    with pytest.raises(SyncError, match=r"0\.05 s waiting for version 3.*synchronizer\.sync_timeout"):
        asyncio.run(scenario())


def test_publishing_to_an_explorer_that_dies_while_loading_ends_at_the_deadline():
    async def scenario() -> None:
        synchronizer = make(timeout_s=0.1)
        waiting = asyncio.create_task(synchronizer.wait_for_version(1, explorer="explorer"))
        await asyncio.sleep(0)
        await asyncio.gather(waiting, Publisher(synchronizer, MemoryTransport()).publish(1, {"w": torch.ones(1)}))

    with pytest.raises(SyncError, match="explorer to load version 1"):
        asyncio.run(scenario())


def test_a_finished_trainer_releases_an_explorer_that_waits():
    async def scenario() -> int:
        synchronizer = make()
        waiting = asyncio.create_task(synchronizer.wait_for_version(7, explorer="explorer"))
        await asyncio.sleep(0)
        await synchronizer.finish_trainer()
        return await waiting

    assert asyncio.run(scenario()) == 0


def test_the_explorer_that_waits_for_the_end_can_load_the_last_version(transport: Transport):
    async def scenario() -> float:
        synchronizer, engine, live = make(), WeightHolder(), {"w": torch.zeros(1)}
        publisher = Publisher(synchronizer, transport)
        waiting = asyncio.create_task(synchronizer.wait_for_trainer())
        for step in (1, 2, 3):
            live["w"] += 1
            await publisher.publish(step, live)
        await synchronizer.finish_trainer()
        version = await waiting
        await pull_weights(synchronizer, engine, version, explorer="explorer")
        return engine.weights["w"].item()

    assert asyncio.run(scenario()) == 3.0


def test_a_checkpoint_gets_the_versions_that_the_explorer_still_needs():
    async def scenario() -> list[int]:
        synchronizer = make(offset=2)
        publisher = Publisher(synchronizer, MemoryTransport())
        for step in (1, 2, 3, 4):
            await publisher.publish(step, {"w": torch.full((1,), float(step))})
            await synchronizer.report_explorer({"explore_step": step}, explorer="explorer")
        return sorted(await publisher.served_weights(4))

    needed = asyncio.run(scenario())
    assert needed == [2, 3], "step 5 is served by version 2, step 6 by 3, step 7 by the checkpoint's own"


def test_restoring_serves_the_same_versions_as_before():
    async def scenario() -> tuple[int, float]:
        synchronizer, engine = make(offset=1), WeightHolder()
        publisher = Publisher(synchronizer, MemoryTransport())
        await publisher.restore(3, {"explore_step": 3}, weights={2: {"w": torch.full((1,), 2.0)}}, explorer="explorer")
        version = synchronizer.schedule.version_for(4)
        newest = await synchronizer.wait_for_version(version, explorer="explorer")
        await pull_weights(synchronizer, engine, version, explorer="explorer")
        return newest, engine.weights["w"].item()

    assert asyncio.run(scenario()) == (3, 2.0)


def test_an_unknown_version_is_refused_with_the_versions_at_hand(transport: Transport):
    transport.put(4, {"w": torch.ones(1)}, copy=True)
    with pytest.raises(SyncError, match=r"\[4\]"):
        transport.get(5)


def test_a_half_written_version_is_invisible_and_the_hint_names_the_newest(tmp_path: Path):
    transport = CheckpointTransport(tmp_path)
    transport.put(2, {"w": torch.ones(1)}, copy=True)
    (tmp_path / "weights" / ".version_3.1.tmp").mkdir()
    (tmp_path / "weights" / ".version_3.1.tmp" / "model.safetensors").write_bytes(b"half")
    assert transport.versions() == [2]
    assert (tmp_path / LATEST_FILE).read_text() == "2"


def test_changed_weights_are_refused_and_the_engine_keeps_its_version(transport: Transport):
    async def scenario() -> tuple[int, float]:
        engine = WeightHolder()
        await update_from(transport.put(1, {"w": torch.ones(4)}, copy=True), engine, timeout_s=5.0)
        ticket = transport.put(2, {"w": torch.full((4,), 2.0)}, copy=True)
        for held in (transport.get(2),) if ticket.method == "memory" else ():
            held["w"][1] += 1
        if ticket.method == "checkpoint":
            file = Path(ticket.place["folder"]) / "model.safetensors"
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
        with pytest.raises(SyncError, match=r"\[E5503\] the weights of version 2 .* fingerprint differs"):
            await update_from(ticket, engine, timeout_s=5.0)
        return engine.model_version, engine.weights["w"][1].item()

    assert asyncio.run(scenario()) == (1, 1.0)


def test_whoever_stops_waiting_for_a_lent_version_leaves_a_copy_to_the_next(transport: Transport):
    class Impatient(LocalSynchronizer):
        async def is_awaited(self, version: int) -> bool:
            answer = await super().is_awaited(version)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return answer

    async def scenario() -> float:
        nonlocal waiting
        synchronizer, engine, live = Impatient(FixedSchedule(), timeout_s=1.0), WeightHolder(), {"w": torch.ones(1)}
        waiting = asyncio.create_task(synchronizer.wait_for_version(1, explorer="explorer"))
        await asyncio.sleep(0)
        await Publisher(synchronizer, transport).publish(1, live)
        live["w"] += 1
        await pull_weights(synchronizer, engine, 1, explorer="explorer")
        return engine.weights["w"].item()

    waiting: asyncio.Task[int]
    assert asyncio.run(scenario()) == 1.0


def test_versions_before_a_lent_one_are_not_asked_for_by_a_checkpoint():
    """The explorer has continued since it last reported, as one that continues after a kill has."""

    async def scenario() -> dict[int, object]:
        synchronizer, engine = make(), WeightHolder()
        publisher = Publisher(synchronizer, MemoryTransport())
        await publisher.restore(1, {"explore_step": 1}, weights={1: {"w": torch.ones(1)}}, explorer="explorer")

        async def explore() -> None:
            await synchronizer.wait_for_version(2, explorer="explorer")
            await pull_weights(synchronizer, engine, 2, explorer="explorer")

        exploring = asyncio.create_task(explore())
        await asyncio.sleep(0)
        await publisher.publish(2, {"w": torch.ones(1) * 2})
        await exploring
        return dict(await publisher.served_weights(3))

    assert asyncio.run(scenario()) == {}


def test_a_ticket_outlives_its_trip_to_another_process(transport: Transport):
    ticket = transport.put(3, {"w": torch.ones(2), "scalar": torch.tensor(1.5)}, copy=True)
    again = pickle.loads(pickle.dumps(ticket))  # noqa: S301  as a call to another process does
    assert (again.version, again.fingerprint, again.num_bytes) == (3, ticket.fingerprint, 12)
    assert receive(again, timeout_s=5.0)["scalar"] == 1.5


def test_a_ticket_of_files_outlives_its_trip_as_text(tmp_path: Path):
    ticket = CheckpointTransport(tmp_path).put(3, {"scalar": torch.tensor(1.5)}, copy=True)
    again = Ticket.from_json(ticket.as_json())
    assert again == ticket
    assert receive(again, timeout_s=5.0)["scalar"] == 1.5


def test_a_version_that_is_read_is_not_removed(tmp_path: Path):
    transport = CheckpointTransport(tmp_path)
    first = transport.put(1, {"w": torch.ones(1)}, copy=True)
    transport.put(2, {"w": torch.ones(1)}, copy=True)
    with reading(Path(first.place["folder"])):
        transport.drop_before(2)
        assert transport.versions() == [1, 2]
    transport.drop_before(2)
    assert transport.versions() == [2]


def test_a_ticket_of_a_transport_that_this_version_lacks_is_refused():
    with pytest.raises(SyncError, match=r"E5504.*no transport is called 'pigeon'; known: checkpoint, memory, nccl"):
        receive(Ticket(3, "pigeon", "xxh3:0", 8), timeout_s=1.0)


KILLED = """
import sys
from pathlib import Path
import torch
from trinity.synchronizer.transport import CheckpointTransport
transport = CheckpointTransport(Path(sys.argv[1]))
for version in (1, 2):
    transport.put(version, {"w": torch.ones(1000)}, copy=True)
"""


def test_what_a_killed_publication_left_is_removed_by_the_next_one(tmp_path: Path):
    environment = {"TRINITY_FAILPOINTS": "sync.before_publish=kill@2", "PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "weights").glob(".version_2.*.tmp/model.safetensors"))) == 1
    transport = CheckpointTransport(tmp_path)
    assert transport.versions() == [1], "and nobody takes it for a version"
    transport.put(2, {"w": torch.zeros(10)}, copy=True)
    assert sorted(entry.name for entry in (tmp_path / "weights").iterdir()) == ["version_1", "version_2"]


def test_weights_that_cannot_be_written_are_named(tmp_path: Path):
    (tmp_path / "weights").write_text("a file where the folder should be")
    with pytest.raises(
        SyncError, match="cannot publish the weights of version 3 under .*weights: .*File exists"
    ) as found:
        CheckpointTransport(tmp_path).put(3, {"w": torch.ones(2)}, copy=True)
    assert found.value.code == "E5512"
