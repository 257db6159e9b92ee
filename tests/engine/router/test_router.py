"""Several engines behind one: the choice, the same answers as of one engine, and engines that are lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.engines import response, run
from trinity.common.config.model import ModelConfig
from trinity.common.errors import EngineError, EnginesLostError, SyncError
from trinity.common.experience import Experience
from trinity.engine.router.engine_pool import EnginePoolSettings
from trinity.engine.router.policy import PrefixTable, choose_engine, fixed_engine, group_of
from trinity.engine.router.router import EngineRouter
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine
from trinity.utils import failpoints

Made = tuple[Path, PreTrainedModel]


class Engines:
    """Torch engines in this process, which can be told not to start.

    Args:
        path: folder of the model.
    """

    def __init__(self, path: Path, **settings: Any) -> None:
        config = ModelConfig.model_validate({"model_path": str(path), "max_model_len": 64})
        self.settings = EngineSettings(
            model=config, dtype="float32", device="cpu", timeout_s=30.0, max_num_seqs=16, **settings
        )
        self.made: dict[int, list[TorchEngine]] = {}
        self.is_broken = False

    async def start(self, index: int) -> TorchEngine:
        if self.is_broken:
            raise OSError("no such device")
        engine = TorchEngine(self.settings)
        await engine.prepare()
        self.made.setdefault(index, []).append(engine)
        return engine

    async def end(self, engine: TorchEngine) -> None:
        await engine.shutdown()


@contextlib.asynccontextmanager
async def router(
    path: Path, count: int = 2, *, source: Engines | None = None, is_deterministic: bool = False, **pool: float
) -> AsyncIterator[EngineRouter]:
    """Yield a prepared router over `count` engines."""
    made = EngineRouter(
        source or Engines(path, is_deterministic=is_deterministic),
        EnginePoolSettings(count, **{"sync_timeout_s": 30.0} | pool),
        timeout_s=30.0,
        is_deterministic=is_deterministic,
    )
    await made.prepare()
    try:
        yield made
    finally:
        await made.shutdown()


async def ask(made: EngineRouter | TorchEngine, task: int, **more: Any) -> list[Experience]:
    ids = [f"1/{task}/{run}/0" for run in range(2)]
    return await made.generate(f"{task}+{task * 7}=", n=2, max_tokens=6, sample_ids=ids, **more)


# ------------------------------------------------------------------------- choice
def test_a_prefix_stays_where_it_is_unless_its_engine_is_overloaded() -> None:
    assert choose_engine({0: 5, 1: 3, 2: 3}) == 1
    assert choose_engine({0: 30, 1: 0}, home=0) == 0
    assert choose_engine({0: 33, 1: 0}, home=0) == 1
    assert choose_engine({0: 133, 1: 100}, home=0) == 0
    assert choose_engine({0: 160, 1: 100}, home=0) == 1
    assert choose_engine({1: 9, 2: 8}, home=0) == 2


def test_groups_over_many_engines_are_balanced_and_stay_together() -> None:
    loads, table = dict.fromkeys(range(1024), 0.0), PrefixTable()
    placed: dict[str, set[int]] = {}
    for request in range(4 * 4096):
        group = f"1/{request % 4096}"
        chosen = choose_engine(loads, home=table.home(group))
        table.note(group, chosen)
        loads[chosen] += 1.0
        placed.setdefault(group, set()).add(chosen)
    assert {len(engines) for engines in placed.values()} == {1}
    assert set(loads.values()) == {16.0}


def test_a_fixed_engine_is_a_function_of_who_asks() -> None:
    runners = Counter(fixed_engine(f"runner_{number:04d}", [0, 1, 5]) for number in range(12))
    assert runners == {0: 4, 1: 4, 5: 4}
    assert fixed_engine("runner_0004+2", [0, 1, 5]) == fixed_engine("runner_0004", [0, 1, 5])
    samples = Counter(fixed_engine(f"3/{task}/0/0", [0, 1]) for task in range(200))
    assert min(samples.values()) > 70


def test_the_group_of_samples_is_their_batch_and_task() -> None:
    assert group_of(["4/taskset/7/0/2"]) == "4/taskset/7"
    assert group_of(["~000000000001/000000"]) is None and group_of(None) is None


def test_a_prefix_table_forgets_the_oldest() -> None:
    table = PrefixTable(capacity=2)
    for index, group in enumerate("abac"):
        table.note(group, index)
    assert (table.home("a"), table.home("b"), table.home("c"), len(table)) == (2, None, 3, 2)


# ------------------------------------------------------------------------ answers
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_several_engines_answer_as_one(llama: Made, is_deterministic: bool) -> None:
    async def call(count: int) -> tuple[list[list[Experience]], dict[str, float]]:
        async with router(llama[0], count, is_deterministic=is_deterministic) as made:
            names = [f"runner_{task:04d}" for task in range(6)]
            for name in names:
                await made.join_round(name)
            return await asyncio.gather(
                *(ask(made, task, participant=names[task]) for task in range(6))
            ), await made.stats()

    one, _ = run(call(1))
    three, stats = run(call(3))
    for left, right in zip(one, three, strict=True):
        assert [response(e) for e in left] == [response(e) for e in right]
        if is_deterministic:
            assert all(torch.equal(a.logprobs, b.logprobs) for a, b in zip(left, right, strict=True))
    assert [stats[f"{index}/answered_requests"] for index in range(3)] == ([4.0] * 3 if is_deterministic else [2.0] * 3)
    assert stats["samples"] == 12 and stats["engines_serving"] == 3 and stats["0/load"] == 0


def test_calls_without_an_identity_differ_between_engines(llama: Made) -> None:
    async def call() -> list[Experience]:
        async with router(llama[0]) as made:
            groups = await asyncio.gather(*(made.generate("1+1=", max_tokens=20) for _ in range(4)))
            return [e for group in groups for e in group]

    assert len({tuple(response(e)) for e in run(call())}) == 4


def test_other_event_loops_are_served_and_the_vocabulary_is_the_engine_s(llama: Made) -> None:
    async def call() -> tuple[list[int], list[int], int]:
        async with router(llama[0]) as made:
            there = await asyncio.to_thread(lambda: asyncio.run(ask(made, 3)))
            here = await ask(made, 3)
            return response(there[0]), response(here[0]), made.vocabulary()["+"]

    there, here, plus = run(call())
    assert there == here and plus > 2


# ----------------------------------------------------------------- lost and found
def weights_of(model: PreTrainedModel, factor: float) -> dict[str, torch.Tensor]:
    return {name: tensor * factor for name, tensor in model.state_dict().items()}


def test_each_engine_tells_how_it_answers_and_a_lost_one_is_in_no_figure_of_the_living(llama: Made) -> None:
    async def call() -> list[dict[str, float]]:
        source, tables = Engines(llama[0]), []
        async with router(llama[0], source=source) as made:
            await made.update_weights(weights_of(llama[1], 0.5), version=7)
            calls = [made.generate(f"{i}+", n=20, max_tokens=4, ignore_eos=True) for i in range(2)]
            await asyncio.gather(*calls)
            tables.append(await made.stats())
            made._pool.lose(made._pool.slots[0], EngineError("its process is gone", code="E5701"))
            while len(made._pool.serving()) < 2:
                await asyncio.sleep(0.01)
            await made.update_weights(weights_of(llama[1], 0.6), version=8)
            tables.append(await made.stats())
        return tables

    before, after = run(call())
    for index in range(2):
        assert before[f"{index}/latency_s"] > 0 and before[f"{index}/tokens_per_second"] > 0
        assert before[f"{index}/queue"] == 4, "20 samples on 16 slots"
        assert before[f"{index}/model_version"] == 7 and before[f"{index}/weight_age_s"] > 0
        assert before[f"{index}/restarts"] == 0
    assert (after["0/restarts"], after["1/restarts"]) == (1, 0)
    assert "0/latency_s" not in after and after["1/latency_s"] == before["1/latency_s"], "it has answered nothing yet"
    assert [after[f"{index}/model_version"] for index in range(2)] == [8, 8]
    assert after["num_slots"] == 32 and after["tokens_per_second"] == after["1/tokens_per_second"]
    assert after["samples"] == 40, "what it has done counts"
    assert not {"latency_s", "queue", "model_version", "weight_age_s"} & after.keys(), "they are no sums"


def test_requests_of_a_lost_engine_are_answered_by_another_and_it_returns_with_the_weights(llama: Made) -> None:
    async def call() -> tuple[Any, ...]:
        source = Engines(llama[0])
        async with router(llama[0], source=source) as made:
            await made.update_weights(weights_of(llama[1], 0.5), version=7)
            calls = [
                asyncio.ensure_future(made.generate(f"{i}+", max_tokens=55, ignore_eos=True, sample_ids=[f"1/{i}/0/0"]))
                for i in range(8)
            ]
            while source.made[0][0]._ready()[1].batch.counts.steps < 2:
                await asyncio.sleep(0.001)
            await source.made[0][0].shutdown()
            answers = await asyncio.gather(*calls)
            while len(made._pool.serving()) < 2:
                await asyncio.sleep(0.01)
            again = source.made[0][1]
            stats = await made.stats()
            return answers, stats, again.model_version, response((await ask(again, 5))[0]), source.made[1][0]

    answers, stats, version, sample, other = run(call())
    assert len(answers) == 8 and all(len(response(group[0])) == 55 for group in answers)
    assert all(group[0].info["model_version"] == 7 for group in answers)
    assert stats["rerouted_requests"] > 0 and stats["engine_restarts"] == 1
    assert version == 7

    async def alone() -> list[int]:
        async with router(llama[0], 1) as made:
            await made.update_weights(weights_of(llama[1], 0.5), version=7)
            return response((await ask(made, 5))[0])

    assert sample == run(alone())


def test_an_engine_that_could_not_take_the_weights_gets_no_request(llama: Made) -> None:
    """The engine comes back, its first attempt at the weights fails, the second one succeeds."""

    async def call() -> tuple[int, int, dict[str, float]]:
        source = Engines(llama[0])
        async with router(llama[0], source=source) as made:
            await made.update_weights(weights_of(llama[1], 0.5), version=3)
            failpoints.configure("engine.before_weights=raise@1")
            await source.made[0][0].shutdown()
            await asyncio.gather(*(ask(made, task) for task in range(4)))
            while len(source.made[0]) < 2:
                await asyncio.sleep(0.01)
            stale = source.made[0][1]
            await asyncio.gather(*(ask(made, task) for task in range(4)))
            while len(made._pool.serving()) < 2:
                await asyncio.sleep(0.01)
            return stale.model_version, len(source.made[0]), await made.stats()

    try:
        version, starts, stats = run(call())
    finally:
        failpoints.configure("")
    assert (version, starts) == (0, 3) and stats["engine_restarts"] == 2


def test_engines_that_stay_away_end_the_calls(llama: Made) -> None:
    async def call() -> None:
        source = Engines(llama[0])
        async with router(llama[0], source=source, recovery_timeout_s=0.3) as made:
            source.is_broken = True
            for engines in source.made.values():
                await engines[0].shutdown()
            await ask(made, 1)

    with pytest.raises(EnginesLostError, match=r"no inference engine has served for 0.3 s \(explorer.engine_recovery"):
        run(call())


def test_weights_that_do_not_fit_are_refused_and_no_engine_is_replaced(llama: Made) -> None:
    async def call() -> None:
        async with router(llama[0]) as made:
            before = await ask(made, 1)
            for version in (1, 2):
                with pytest.raises(SyncError):
                    await made.update_weights({"unknown": torch.zeros(1)}, version=version)
                assert (await made.stats())["engine_restarts"] == 0 and made.model_version == 0
                again = await ask(made, 1)
                assert response(again[0]) == response(before[0]), "the engines serve the weights that they have"

    run(call())


def test_engines_come_and_go_while_requests_are_answered(llama: Made) -> None:
    async def call() -> tuple[list[Any], int, dict[str, float]]:
        async with router(llama[0], 1) as made:
            await made.update_weights(weights_of(llama[1], 0.5), version=2)
            calls = [asyncio.ensure_future(ask(made, task)) for task in range(4)]
            number = await made.add_engine()
            calls += [asyncio.ensure_future(ask(made, task)) for task in range(4)]
            await asyncio.sleep(0)
            await made.remove_engine(0)
            with pytest.raises(EngineError, match="engine 1 cannot be removed: engines are 1"):
                await made.remove_engine(1)
            answers = await asyncio.gather(*calls)
            return answers, number, await made.stats()

    answers, number, stats = run(call())
    assert number == 1 and len(answers) == 8 and stats["engines"] == 1 and stats["rerouted_requests"] == 0
    assert {group[0].info["model_version"] for group in answers} == {2}
    assert stats["samples"] == 16
