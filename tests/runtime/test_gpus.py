"""Who sees which GPU: those that ask for none see none, and places of engines are reserved together.

The GPUs of the Ray cluster are numbers only, so that the test needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.runtime.parts import Part
from tests.runtime.test_contract import started
from trinity.common.errors import DeadlineError, EnvironmentProblem
from trinity.runtime.base import Resources
from trinity.runtime.local import LocalRuntime
from trinity.utils.gpu import visible_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("there", "visible", "seen"),
    [
        (4, None, ["0", "1", "2", "3"]),
        (4, "", []),
        (4, "-1", []),
        (4, "2, 0", ["2", "0"]),
        (4, "0,9,1", ["0"]),
        (4, "1,1,2", ["1"]),
        (4, "GPU-8f6a,MIG-1", ["GPU-8f6a", "MIG-1"]),
        (0, "0", []),
        (0, None, []),
    ],
)
def test_a_list_of_devices_counts_up_to_the_first_that_is_none(
    there: int, visible: str | None, seen: list[str]
) -> None:
    assert visible_gpus(there, visible) == seen


@pytest.mark.difference("GPUs of a process on Ray that asks for none")
def test_a_child_that_asks_for_no_gpu_sees_none_where_they_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0")

    async def main() -> list[str | None]:
        seen = []
        for divides, gpus in ((True, 0.0), (True, 0.5), (False, 0.0)):
            async with started(LocalRuntime(divides_gpus=divides)) as runtime:
                part = await runtime.start(Part, resources=Resources(num_gpus=gpus, own_process=True))
                seen.append(await part.environment(VISIBLE))
        return seen

    assert asyncio.run(main()) == ["", "0", "0"]


@pytest.fixture(scope="module")
def four_gpus() -> Iterator[str]:
    """A joined cluster whose one machine says that it has four GPUs."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    from trinity.runtime import ray as placement
    from trinity.runtime.cluster import ClusterRequest

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VISIBLE, "0,1,2,3")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 4, "include_dashboard": False})
    with pytest.raises(EnvironmentProblem, match=r"E3202") as error:
        placement.connect(ClusterRequest(made.address, "gpus", gpu_per_node=8))
    assert [line.split()[-1] for line in str(error.value).splitlines()[1:4]] == ["8", "8", "4"]
    placement.connect(ClusterRequest(made.address, "gpus", gpu_per_node=4, is_quiet=True))
    yield made.address
    placement.disconnect()
    made.shutdown()


def ray_runtime() -> Any:
    from trinity.runtime.ray import RayRuntime

    return RayRuntime("gpus")


def test_an_actor_sees_the_gpus_that_it_asked_for_and_no_other(four_gpus: str) -> None:
    async def main() -> None:
        async with started(ray_runtime()) as runtime:
            wants = {"none": Resources(), "two": Resources(num_gpus=2), "half": Resources(num_gpus=0.5)}
            wants["own"] = Resources(env={VISIBLE: "3"})
            parts = [await runtime.start(Part, name=name, resources=each) for name, each in wants.items()]
            none, two, half, own = await asyncio.gather(*(part.environment(VISIBLE) for part in parts))
            assert none == "" and own == "3"
            assert len({*two.split(","), *half.split(",")}) == 3, (two, half)
            ranks = await runtime.group(Part, 2, name="rank")
            assert [await rank.environment(VISIBLE) for rank in ranks] == ["", ""]

    asyncio.run(main())


def test_places_are_reserved_together_and_kept_for_who_comes_back(four_gpus: str) -> None:
    async def main() -> None:
        async with started(ray_runtime()) as runtime:
            first, second = await runtime.reserve(2, name="engine", resources=Resources(num_gpus=1))
            engine = await runtime.start(Part, name="engine_0", resources=first)
            seen = await engine.environment(VISIBLE)
            await engine.kill()
            with pytest.raises(
                DeadlineError, match=r"E5702.*3 places of big were not free within 1 s: each asks for 1 "
            ):
                await runtime.reserve(3, name="big", resources=Resources(num_gpus=1), timeout_s=1)
            again = await runtime.start(Part, name="engine_0", resources=first)
            assert await again.environment(VISIBLE) == seen
            other = await runtime.start(Part, name="engine_1", resources=second)
            assert await other.environment(VISIBLE) not in ("", seen)
            with pytest.raises(DeadlineError, match=r"E5702.*late did not .*asks for 3 GPUs.*has [0-2] GPUs"):
                await runtime.start(Part, name="late", resources=Resources(num_gpus=3), timeout_s=1)
            with pytest.raises(EnvironmentProblem, match=r"E3202.*asks for 6 GPUs and the cluster has 4"):
                await runtime.reserve(3, name="engine", resources=Resources(num_gpus=2))

    asyncio.run(main())
