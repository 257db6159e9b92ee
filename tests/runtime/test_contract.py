"""One contract for the three placements: this process, child processes, Ray actors."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from tests.runtime.parts import Part, PlainlyOwnError, set_up
from trinity.common.errors import AlreadyRunningError, CheckpointError, DeadlineError, SyncError
from trinity.runtime.base import ActorDiedError, RemoteError, Resources, Setup
from trinity.runtime.collector import THRESHOLDS
from trinity.runtime.local import LocalRuntime
from trinity.runtime.process import ProcessRuntime

KINDS = ("local", "process", "ray")
APART = ("process", "ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    pytest.importorskip("ray")
    from trinity.runtime import ray as placement
    from trinity.runtime.cluster import ClusterRequest

    placement.connect(ClusterRequest("local", namespace="contract"))
    yield
    placement.disconnect()


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Return a function that makes the runtime of a kind."""

    def of_kind(kind: str) -> Any:
        setup = Setup(set_up, {"word": "made for"})
        if kind != "ray":
            return {"local": LocalRuntime, "process": ProcessRuntime}[kind](setup)
        request.getfixturevalue("cluster")
        from trinity.runtime.ray import RayRuntime

        return RayRuntime("contract", setup)

    return of_kind


@asynccontextmanager
async def started(runtime: Any) -> AsyncIterator[Any]:
    try:
        yield runtime
    finally:
        await runtime.close(grace_s=5)


def is_there(pid: int) -> bool:
    """Return whether a process runs; one that is dead and not yet waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_soon(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while is_there(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_there(pid)


@pytest.mark.parametrize("kind", KINDS)
def test_coroutines_run_together_and_plain_methods_one_at_a_time(make, kind: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            part = await runtime.start(Part, 10, name="part", rank=3)
            waiting = [asyncio.ensure_future(part.wait()) for _ in range(20)]
            assert max(await asyncio.gather(*(part.add(1) for _ in range(10)))) == 20
            pid, thread, rank = await part.facts()
            assert (part.pid, "part", 3) == (pid, thread, rank) and (pid == os.getpid()) == (kind == "local")
            await part.open()
            assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == ["opened"] * 20

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_errors_keep_their_type_code_and_place(make, kind: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            part = await runtime.start(Part)
            with pytest.raises(CheckpointError, match="step 3 is torn") as torn:
                await part.fail("trinity")
            assert torn.value.code == "E7002" and torn.value.exit_code == 7
            with pytest.raises(CheckpointError, match="E7003"):
                await part.fail_soon()
            with pytest.raises(LookupError, match="no such thing") as lookup:
                await part.fail("lookup")
            with pytest.raises(RuntimeError, match="SystemExit: 3"):
                await part.fail("exit")
            own = PlainlyOwnError if kind == "local" else RemoteError
            with pytest.raises(own, match="gadget number 7"):
                await part.fail("own")
            with pytest.raises(AttributeError, match="private"):
                await part._gate()
            with pytest.raises(AttributeError, match="vanish"):
                await part.vanish()
            if kind != "local":
                note = lookup.value.__notes__[0].splitlines()
                assert note[0].startswith("raised in Part (process ") and "parts.py" in note[1], note

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_constructor_is_the_error_of_start(make, kind: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            with pytest.raises(CheckpointError, match="nothing to load") as error:
                await runtime.start(Part, die="error")
            assert error.value.code == "E7001"
            with pytest.raises(DeadlineError, match=r"E5702.*slow did not start within 0.2 s"):
                await runtime.start(time.sleep, 3, name="slow", timeout_s=0.2)
            part = await runtime.start(Part, 1)  # the name is free again
            with pytest.raises(AlreadyRunningError, match="E8010.*Part lives"):
                await runtime.start(Part, 2)
            assert await part.add(1) == 2

    asyncio.run(main())


@pytest.mark.parametrize("kind", APART)
@pytest.mark.parametrize("how", ["exit", "kill"])
def test_death_is_told_to_all_who_wait_with_its_cause(make, kind: str, how: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            part = await runtime.start(Part, name=f"dying_{how}")
            waiting = [asyncio.ensure_future(call) for call in (part.wait(), part.die(how), part.wait_dead())]
            first, second, cause = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
            for error in (first, second):
                assert isinstance(error, ActorDiedError) and error.code == "E5701"
                assert f"dying_{how} (process {part.pid}" in str(error) and cause in str(error)
            expected = {"exit": "exit code 3", "kill": "SIGKILL"}[how] if kind == "process" else "killed by a signal"
            assert expected in cause and cause.endswith("its last line on stderr: the last words")
            with pytest.raises(ActorDiedError):
                await part.add(1)
            with pytest.raises(ActorDiedError, match="unborn"):
                await runtime.start(Part, name="unborn", die=how)
            again = await runtime.start(Part, 4, name=f"dying_{how}")
            assert again.pid != part.pid and await again.add(1) == 5

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_component_is_gone_at_once(make, kind: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            part = await runtime.start(Part)
            sleeper = await part.start_sleeper() if kind == "process" else None
            waiting, dead = asyncio.ensure_future(part.wait()), asyncio.ensure_future(part.wait_dead())
            await asyncio.sleep(0.1)
            await part.kill()
            with pytest.raises(ActorDiedError):
                await asyncio.wait_for(waiting, 10)
            assert await asyncio.wait_for(dead, 10) == await part.wait_dead()
            assert kind == "local" or gone_soon(part.pid)
            assert sleeper is None or gone_soon(sleeper)

    asyncio.run(main())


@pytest.mark.parametrize("kind", APART)
def test_a_stopped_process_is_killed_all_the_same(make, kind: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            part = await runtime.start(Part)
            os.kill(part.pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(part.facts(), 0.2)
            await part.kill()
            assert gone_soon(part.pid)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_the_wait_cancels_the_coroutine(make, kind: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            part = await runtime.start(Part)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(part.wait(), 0.2)
            for _ in range(100):
                if await part.count_cancelled():
                    break
                await asyncio.sleep(0.05)
            assert await part.count_cancelled() == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_has_ranks_and_is_whole_or_not_there(make, kind: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            resources = Resources(env={"TRINITY_TEST_WORD": "given"}, own_process=True)
            parts = await runtime.group(Part, 2, 5, name="rank", resources=resources)
            assert [part.name for part in parts] == ["rank_0", "rank_1"]
            facts = await asyncio.gather(*(part.facts() for part in parts))
            assert [rank for *_, rank in facts] == [0, 1] and len({pid for pid, *_ in facts}) == 2
            assert await parts[1].environment("TRINITY_TEST_WORD") == "given"
            assert await parts[1].environment("TRINITY_TEST_SETUP") == "made for rank_1"
            with pytest.raises(CheckpointError):
                await runtime.group(Part, 2, name="none", resources=resources, die="error")

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_objects_travel_in_both_directions(make, kind: str) -> None:
    async def main() -> None:
        async with started(make(kind)) as runtime:
            part = await runtime.start(Part, resources=Resources(own_process=True))
            there = (await part.put(runtime.objects)).load()
            assert there["b"].dtype == torch.bfloat16 and there["b"].tolist() == [1.5, -2.25, 3.0]
            assert there["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and there["c"] is there["a"]
            assert there["none"].shape == (0, 4)
            big = torch.ones(1000, 1000)
            ref = runtime.objects.put({"big": big, "tied": big, "slice": big[:, 3]})
            assert await part.sum_of(ref) == {"big": 1e6, "tied": 1e6, "slice": 1e3}
            ref.drop()
            with pytest.raises(SyncError, match="E5704"):
                ref.load()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_travel_in_arguments_and_results(make, kind: str) -> None:
    """Whatever their type, layout and size; what arrives may be written to and is its receiver's own."""
    sent = {
        "bfloat16": torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
        "bool": torch.tensor([[True, False]]),
        "transposed": torch.arange(6, dtype=torch.int64).reshape(2, 3).T,
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse(),
    }

    async def main() -> dict[str, torch.Tensor]:
        async with started(make(kind)) as runtime:
            part = await runtime.start(Part, resources=Resources(own_process=True))
            return dict(await part.echo(sent))

    came = asyncio.run(main())
    for name, tensor in sent.items():
        assert type(came[name]) is type(tensor) and came[name].requires_grad == tensor.requires_grad, name
        torch.testing.assert_close(came[name], tensor, rtol=0, atol=0, equal_nan=True)
    came["bfloat16"].add_(1.0)
    assert sent["bfloat16"][0] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_of_the_run_collects_seldom_and_that_of_its_caller_as_before(make, kind: str) -> None:
    async def main() -> tuple[int, int, int]:
        async with started(make(kind)) as runtime:
            return await (await runtime.start(Part, name="collecting")).collector()

    before = gc.get_threshold()
    assert asyncio.run(main()) == (THRESHOLDS if kind in APART else before)
    assert gc.get_threshold() == before != THRESHOLDS


@pytest.mark.parametrize("kind", APART)
def test_close_leaves_no_process_behind(make, kind: str) -> None:
    async def main() -> list[int]:
        runtime = make(kind)
        parts = await runtime.group(Part, 2, name="leaving")
        stuck = await runtime.start(Part, name="stuck")
        sleeping = asyncio.ensure_future(stuck.wait())
        os.kill(stuck.pid, signal.SIGSTOP)
        started_at = time.monotonic()
        await runtime.close(grace_s=0.5)
        assert time.monotonic() - started_at < 60
        with pytest.raises(ActorDiedError):
            await sleeping
        return [part.pid for part in (*parts, stuck)]

    assert all(gone_soon(pid) for pid in asyncio.run(main()))


@pytest.mark.difference("Synchronizer on Ray")
def test_children_end_with_their_parent_and_its_memory_with_it(tmp_path) -> None:
    program = """
import asyncio, os, sys, torch
from tests.runtime.parts import Part
from trinity.runtime.process import ProcessRuntime
async def main():
    runtime = ProcessRuntime()
    parts = await runtime.group(Part, 2, name="part")
    ref = runtime.objects.put({"x": torch.ones(10)})
    print(*(part.pid for part in parts), ref.path, flush=True)
    await asyncio.gather(*(part.wait() for part in parts))
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    first, second, path = parent.stdout.readline().split()
    assert is_there(int(first)) and is_there(int(second)) and os.path.exists(path)
    parent.kill()
    parent.wait(10)
    assert gone_soon(int(first)) and gone_soon(int(second)) and not os.path.exists(path)
