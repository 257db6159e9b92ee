"""What `scale.py` measures on this machine: weight sync, scheduling, the experience store, latencies of samples."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
from scale_child import TIMEOUT_S, clocks, in_other_process, since, take
from scale_rows import rows_of
from torch import Tensor

from trinity.buffer.store import ExperienceStore
from trinity.common.config import Config
from trinity.common.experience import Experience
from trinity.common.models import ModelWrapper, create_inference_model
from trinity.common.weights import num_bytes
from trinity.common.workflows.task import Task
from trinity.common.workflows.workflow import Workflow
from trinity.explorer.scheduler import Scheduler, SchedulerSettings
from trinity.quickstart.folder import prepare
from trinity.runtime.collector import collect_seldom
from trinity.runtime.objects import MemoryObjects
from trinity.synchronizer.broadcast import BroadcastTransport
from trinity.synchronizer.transport import CheckpointTransport, MemoryTransport, Transport

STANDARD_DEVIATION = 0.02  # of the weights of a trained language model
STEP = 1e-6  # learning rate of the published recipes
Row = dict[str, Any]


# ----------------------------------------------------------------------- weights
class Weights:
    """Float32 tensors of 4 MiB each, drawn as trained ones are spread, and what training steps make of them."""

    def __init__(self, megabytes: int) -> None:
        self._source = torch.Generator().manual_seed(1)
        self.tensors = {f"layer.{i}": self._noise(STANDARD_DEVIATION) for i in range(max(1, megabytes // 4))}

    def step(self) -> None:
        """Change every number as a step of AdamW at a learning rate of `STEP` does."""
        for tensor in self.tensors.values():
            tensor += self._noise(STEP)

    def _noise(self, scale: float) -> Tensor:
        return torch.randn(1024, 1024, generator=self._source) * scale


def transports(folder: Path) -> Iterator[tuple[str, Transport, bool, torch.dtype]]:
    """Yield each transport with its name, whether it reaches another process, and the data type published."""
    between, f32, bf16 = "between processes", torch.float32, torch.bfloat16
    yield "memory, one process", MemoryTransport(), False, f32
    yield f"memory, {between}", MemoryTransport(MemoryObjects()), True, f32
    yield f"checkpoint, {between}", CheckpointTransport(folder), True, f32
    yield f"checkpoint with delta, {between}", CheckpointTransport(folder / "delta", is_delta=True), True, f32
    yield f"checkpoint, bfloat16, {between}", CheckpointTransport(folder / "bf16"), True, bf16
    yield f"checkpoint with delta, bfloat16, {between}", CheckpointTransport(folder / "d16", is_delta=True), True, bf16
    yield f"nccl (over gloo), {between}", BroadcastTransport("scale"), True, f32


def weight_sync(folder: Path, *, megabytes: int, repeats: int) -> list[Row]:
    """Return the median seconds of publishing and of taking weights after a step, and GB/s of both together.

    The weights are `megabytes` of float32, or half of that as bfloat16; `moved` is the part of their bytes that went.
    """
    made, rows = Weights(megabytes), []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        for name, transport, is_distant, dtype in transports(folder):
            target = {key: torch.empty_like(tensor, dtype=dtype) for key, tensor in made.tensors.items()}
            size = num_bytes(target)
            puts, takes = [], []
            for version in range(1, repeats + 2):
                made.step()
                weights = {key: tensor.to(dtype) for key, tensor in made.tensors.items()}
                started = clocks()
                ticket = transport.put(version, weights, copy=True)
                puts.append(since(started))
                if is_distant:
                    takes.append(pool.submit(in_other_process, ticket).result(timeout=TIMEOUT_S))
                else:
                    takes.append(take(ticket, target))
                transport.drop_before(version)
            transport.drop_before(repeats + 2)
            transport.close()
            # The first one starts the process, and is written whole.
            (put_s, put_cpu_s), (take_s, take_cpu_s) = (
                [median(times[which] for times in side[1:]) for which in (0, 1)] for side in (puts, takes)
            )
            rows.append(
                {"transport": name, "publish_s": put_s, "take_s": take_s, "gb_per_s": size / (put_s + take_s) / 1e9}
                | {"gb_per_cpu_s": size / (put_cpu_s + take_cpu_s) / 1e9}
                | {"moved": ticket.place.get("moved_bytes", size) / size}
            )
            shutil.rmtree(folder, ignore_errors=True)
    return rows


# --------------------------------------------------------------------- scheduler
class Nothing(Workflow):
    """Asks no model: what remains is the scheduler's own work."""

    def run(self) -> list[Experience]:
        """Return an experience of two tokens."""
        return [Experience(tokens=[1, 2], prompt_length=1, reward=0.0)]  # type: ignore[arg-type]


def quickstart(folder: Path) -> Config:
    """Return the configuration of the quickstart's untrained model."""
    prepare(folder, seed=1)
    model = {
        "model_path": str(folder / "model"),
        "max_model_len": 96,
        "max_prompt_tokens": 32,
        "max_response_tokens": 64,
    }
    explorer = {"rollout_model": {"dtype": "float32"}, "runner_per_model": 32}
    return Config.model_validate({"model": model, "explorer": explorer})


def scheduling(folder: Path, *, tasks: int, runners: Sequence[int]) -> list[Row]:
    """Return microseconds a task of a workflow that does nothing, wall and CPU, by the number of runners."""
    config = quickstart(folder)

    async def measure(number: int) -> tuple[float, float]:
        engine = create_inference_model(config)
        settings = SchedulerSettings(num_runners=number, max_timeout=60.0)
        scheduler = Scheduler(engine, ModelWrapper(engine, config=config), settings=settings)
        work = [Task(workflow=Nothing, raw_task={}, repeat_times=1) for _ in range(tasks)]
        await scheduler.prepare()
        await scheduler.schedule(work[: 2 * number], batch=0)
        started = clocks()
        result = await scheduler.schedule(work, batch=1)
        seconds = since(started)
        scheduler.close()
        if len(result.experiences) != tasks:
            raise RuntimeError(f"{tasks} tasks were to give one experience each, got {len(result.experiences)}")
        return seconds

    rows = []
    for number in runners:
        wall_s, cpu_s = asyncio.run(measure(number))
        rows.append({"runners": number, "us_per_task": wall_s / tasks * 1e6, "cpu_us_per_task": cpu_s / tasks * 1e6})
    return rows


# ------------------------------------------------------------------------- store
def store_rows(folder: Path, *, steps: int, rows: int) -> Row:
    """Return rows a second of append, claim and commit, and of all three, with a durable commit a call each.

    `..._per_cpu_s` counts the seconds in which this process computed, which others beside it do not lengthen.
    """
    size = len(rows_of(1, 1)[0].serialize())
    seconds, cpu = ({"append": 0.0, "claim": 0.0, "commit": 0.0} for _ in range(2))
    file = folder / "rows.db"
    with ExperienceStore(f"sqlite:///{file}") as store:
        store.open_producer("exp", "explorer", run="run")
        token = store.open_consumer("exp", "trainer", run="run", cut=0)
        for step in range(1, steps + 1):
            batch = rows_of(step, rows)
            times = [clocks()]
            store.append("exp", batch, run="run", producer="explorer", explore_step=step)
            times.append(clocks())
            read = store.read_batch(token, rows, timeout_s=60.0)
            times.append(clocks())
            store.commit_step(token, step, [one.eid.uid for one in read.experiences])
            times.append(clocks())
            for name, start, end in zip(seconds, times[:-1], times[1:], strict=True):
                seconds[name] += end[0] - start[0]
                cpu[name] += end[1] - start[1]
        counts = store.counts("exp", "run")
    if counts["trained"] != steps * rows:
        raise RuntimeError(f"{steps * rows} rows were to be trained, got {counts}")
    file.unlink()
    total = steps * rows
    found: Row = {"payload_bytes": size, "rows": total}
    for unit, spent in (("s", seconds), ("cpu_s", cpu)):
        spent["all"] = sum(spent.values())
        found |= {f"{name}_per_{unit}": total / value for name, value in spent.items()}
    return found


def store_sides(folder: Path, *, steps: int, rows: int, repeats: int) -> Row:
    """Return rows a second from the first append to the last commit, where two processes share the log.

    One appends, as an explorer does, and this one claims and commits, as a trainer does; each call is durable. It is
    done `repeats` times, with the median, the least and the most as the result.
    """
    found = [rows_per_s_of_two(folder, steps=steps, rows=rows) for _ in range(repeats)]
    return {"rows": steps * rows, "per_s": median(found), "least_per_s": min(found), "most_per_s": max(found)}


def rows_per_s_of_two(folder: Path, *, steps: int, rows: int) -> float:
    """Do it once, with a log that is made for it."""
    file = folder / "sides.db"
    url = f"sqlite:///{file}"
    with ExperienceStore(url) as store, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as explorer:
        token = store.open_consumer("exp", "trainer", run="run", cut=0)
        begun = explorer.submit(append_all, url, steps=steps, rows=rows)
        for step in range(1, steps + 1):
            read = store.read_batch(token, rows, timeout_s=TIMEOUT_S)
            store.commit_step(token, step, [one.eid.uid for one in read.experiences])
        seconds = time.perf_counter() - begun.result(TIMEOUT_S)
        counts = store.counts("exp", "run")
    if counts["trained"] != steps * rows:
        raise RuntimeError(f"{steps * rows} rows were to be trained, got {counts}")
    file.unlink()
    return steps * rows / seconds


def append_all(url: str, *, steps: int, rows: int) -> float:
    """Append all batches, which are made before; return when the first append began, on the clock of the machine."""
    collect_seldom()
    batches = [rows_of(step, rows) for step in range(1, steps + 1)]
    with ExperienceStore(url) as store:
        store.open_producer("exp", "explorer", run="run")
        begun = time.perf_counter()
        for step, batch in enumerate(batches, start=1):
            store.append("exp", batch, run="run", producer="explorer", explore_step=step)
    return begun


# --------------------------------------------------------------------- latencies
def latencies(folder: Path, *, number: int) -> list[float]:
    """Return the seconds that each of `number` samples of the torch engine took, 32 of them under way at once."""
    config = quickstart(folder)

    async def measure() -> list[float]:
        engine = create_inference_model(config)
        await engine.prepare()
        limit, seconds = asyncio.Semaphore(32), []

        async def one(index: int) -> None:
            async with limit:
                started = time.perf_counter()
                await engine.chat([{"role": "user", "content": f"{index % 90 + 10}+{index % 80 + 11}="}], seed=index)
                seconds.append(time.perf_counter() - started)

        try:
            await asyncio.gather(*(one(index) for index in range(number + 64)))
        finally:
            await engine.shutdown()
        return seconds[32:-32]  # without the start, where the prefills queue up, and the end, where engines run empty

    return asyncio.run(measure())


def described(values: Sequence[float]) -> Mapping[str, float]:
    """Return mean, median, 99th percentile and maximum in units of the mean."""
    ordered, mean = sorted(values), sum(values) / len(values)
    pick = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] / mean for name, share in pick.items()}
