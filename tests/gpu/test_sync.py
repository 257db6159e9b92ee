"""New weights on their way from the trainer to the engine."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.engine.engines import engine, run
from tests.gpu.parts import config_of, family_model, worker_on
from tests.trainer.conftest import make_experiences
from trinity.common.experience import Experience
from trinity.common.weights import Ticket, fingerprint, receive
from trinity.common.weights.collective import Sender, Session, end_group, join_group
from trinity.runtime.objects import MemoryObjects
from trinity.synchronizer.broadcast import BroadcastTransport
from trinity.synchronizer.transport import CheckpointTransport, MemoryTransport, Transport
from trinity.trainer.batch import collate
from trinity.trainer.verl.worker import ActorWorker

WAYS = ("memory", "memory of another process", "collective", "files", "delta")


def transport_of(way: str, folder: Path) -> Transport:
    """Return a transport; the collective one over gloo, which works with one GPU."""
    if way == "collective":
        return BroadcastTransport("gpu", bucket_bytes=4096)
    if way in ("files", "delta"):
        return CheckpointTransport(folder, is_delta=way == "delta")
    return MemoryTransport(None if way == "memory" else MemoryObjects())


def trained(path: Path, device: torch.device, **model: Any) -> ActorWorker:
    """Return a worker on `device`, a step away from the model in `path`."""
    algorithm = {"optimizer": {"lr": 0.02}}
    worker = worker_on(device, config_of(path, model=model, algorithm=algorithm))
    worker.train_step(make_experiences(1), 1)
    return worker


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_samples_with_the_trainers_new_weights(tmp_path: Path, device: torch.device, way: str) -> None:
    path = tmp_path / "model"
    family_model(path, "qwen3")
    worker = trained(path, device, lora_configs=[{"lora_rank": 4, "lora_alpha": 8}] if way == "memory" else [])
    transport = transport_of(way, tmp_path / "job")

    async def call() -> tuple[list[Experience], list[Experience]]:
        async with engine(path, device=device.type) as made:
            before = await made.generate("12+3=", n=4, max_tokens=16, sample_ids=list("abcd"))
            ticket = transport.put(1, worker.weights(), copy=True)
            await made.update_weights(receive(ticket, timeout_s=20.0), version=1)
            return before, await made.generate("12+3=", n=4, max_tokens=16, sample_ids=list("abcd"))

    try:
        before, after = run(call())
    finally:
        transport.close()
    rows = worker.actor.compute_log_prob(collate(after))
    for row, sample in zip(rows, after, strict=True):
        assert sample.info["model_version"] == 1 and sample.logprobs is not None
        assert float((row[: sample.response_length] - sample.logprobs).abs().max()) <= 1e-4
    assert any(not torch.equal(a.logprobs, b.logprobs) for a, b in zip(before, after, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("peers", [0, 1])
def test_nccl_brings_every_byte(peers: int) -> None:
    """One rank alone shows that its buckets are on the device; a second one needs a second GPU."""
    if torch.cuda.device_count() <= peers:
        pytest.skip("a broadcast between two ranks of NCCL needs two GPUs")
    weights = {"large": torch.randn(5000, device="cuda"), "half": torch.randn(7, 33, device="cuda").bfloat16()}
    if peers:
        transport = BroadcastTransport("gpu", backend="nccl", bucket_bytes=4096)
        try:
            ticket = transport.put(1, weights, copy=True)
            received = received_on_the_second(ticket)
        finally:
            transport.close()
        assert fingerprint(received) == ticket.fingerprint
        return
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=20)
    reach = {"backend": "nccl", "address": "127.0.0.1"}
    group, where = join_group(store, "gpu", Session("alone", 1, 1), rank=0, timeout=limit, **reach)
    try:
        assert where.type == "cuda"
        Sender(group, where, limit, bucket_bytes=4096).send(weights)
    finally:
        end_group(group)


def received_on_the_second(ticket: Ticket) -> dict[str, Tensor]:
    """Return what another process receives on the second GPU."""
    with ProcessPoolExecutor(1, mp_context=torch.multiprocessing.get_context("spawn")) as pool:
        values = pool.submit(_receive, ticket.as_json()).result(timeout=60)
    return {name: torch.tensor(numbers, dtype=getattr(torch, dtype)) for name, (numbers, dtype) in values.items()}


def _receive(ticket: str) -> dict[str, tuple[list[float], str]]:
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = shown[1]  # before the first use of CUDA in this process
    weights = receive(Ticket.from_json(ticket), timeout_s=20.0)
    return {name: (t.float().tolist(), str(t.dtype).removeprefix("torch.")) for name, t in weights.items()}
