"""The broadcast between real processes: what arrives, and what is left when a peer dies in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from trinity.common.config import Config
from trinity.common.errors import SyncError
from trinity.common.weights import Ticket, fingerprint, receive, shared_by
from trinity.common.weights.collective import own_address
from trinity.synchronizer.broadcast import BroadcastTransport
from trinity.synchronizer.transport import transport_of

ROOT = Path(__file__).parents[2]
ENGINE = """
import sys
from trinity.common.weights import Ticket, fingerprint, receive
ticket = Ticket.from_json(sys.argv[1])
print("ready", flush=True)
weights = receive(ticket, timeout_s=8)
print(fingerprint(weights), flush=True)
"""
TRAINER = """
import time, torch
from trinity.common.weights.collective import own_address
from trinity.synchronizer.broadcast import BroadcastTransport
from trinity.synchronizer.transport import transport_of
transport = BroadcastTransport("test", bucket_bytes=4096)
print(transport.put(1, {"w": torch.arange(20000.0)}, copy=True).as_json(), flush=True)
time.sleep(60)
"""


def process(code: str, *arguments: str, failpoints: str = "") -> subprocess.Popen[str]:
    """Start Python code as a process of its own."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    env = os.environ | {"TRINITY_FAILPOINTS": failpoints, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture
def transport() -> Iterator[BroadcastTransport]:
    """A transport in this process whose buckets are small."""
    made = BroadcastTransport("test", bucket_bytes=4096)
    yield made
    made.close()


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Return the addresses and ports at which a process listens."""
    connections = process.net_connections("tcp")
    return {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}


def test_a_run_on_one_machine_listens_at_its_loopback_interface_and_others_at_one_address() -> None:
    tree = {"synchronizer": {"sync_method": "nccl"}}
    for runtime, address in (("local", "127.0.0.1"), ("ray", own_address())):
        before = listening(psutil.Process())
        made = transport_of(Config.model_validate(tree | {"cluster": {"runtime": runtime}}))
        ticket = made.put(1, {"w": torch.arange(3.0)}, copy=True)
        ((host, port),) = {(host.removeprefix("::ffff:"), port) for host, port in listening(psutil.Process()) - before}
        assert (host, port) == (address, ticket.place["port"]) and ticket.place["host"] == address
        assert torch.equal(receive(ticket, timeout_s=8)["w"], torch.arange(3.0))
        made.close()


def make_weights(seed: int) -> dict[str, Tensor]:
    """Return tensors of several types, some larger than a bucket, one empty, one a number."""
    generator = torch.Generator().manual_seed(seed)
    large = torch.randn(5000, generator=generator)
    return {
        "large": large,
        "half": torch.randn(7, 33, generator=generator).bfloat16(),
        "none": torch.zeros(0, 4),
        "number": torch.tensor(3 + seed),
        "tied": large,
    }


def test_the_bytes_of_every_type_and_size_arrive(transport: BroadcastTransport) -> None:
    for version in (1, 2):
        weights = make_weights(version)
        ticket = transport.put(version, weights, copy=True)
        weights["large"] += 1
        received = receive(Ticket.from_json(ticket.as_json()), timeout_s=10.0)
        assert fingerprint(received) == ticket.fingerprint == fingerprint(make_weights(version))
    transport.drop_before(2)
    assert transport.versions() == [2]
    with pytest.raises(SyncError, match=r"\[E5502\] .*\[2\]"):
        transport.get(1)


def test_several_engines_share_one_broadcast_and_survive_the_death_of_one(transport: BroadcastTransport) -> None:
    ticket = transport.put(1, make_weights(5), copy=True)
    first, second, third = shared_by(ticket, 3)
    dying = process(ENGINE, third.as_json(), failpoints="sync.after_bucket_received=kill@2")
    assert dying.stdout is not None and dying.stdout.readline() == "ready\n"
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda each: receive(each, timeout_s=40.0), (first, second)))
    assert [fingerprint(weights) for weights in results] == [ticket.fingerprint] * 2
    assert dying.wait(timeout=20) == -signal.SIGKILL


def test_a_trainer_that_dies_in_the_middle_ends_the_wait_with_its_reason() -> None:
    trainer = process(TRAINER, failpoints="sync.after_bucket=kill@3")
    assert trainer.stdout is not None
    ticket = Ticket.from_json(trainer.stdout.readline())
    started = time.monotonic()
    with pytest.raises(SyncError, match=r"\[E5506\] .*version 1 did not come .*sync_timeout.*2 attempts"):
        receive(ticket, timeout_s=10.0)
    assert time.monotonic() - started < 40.0
    assert trainer.wait(timeout=20) == -signal.SIGKILL


def test_a_trainer_that_stands_still_ends_the_wait_at_the_deadline() -> None:
    trainer = process(TRAINER)
    try:
        assert trainer.stdout is not None
        ticket = Ticket.from_json(trainer.stdout.readline())
        os.kill(trainer.pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(SyncError, match=r"\[E5506\]"):
            receive(ticket, timeout_s=2.0)
        assert time.monotonic() - started < 30.0
    finally:
        trainer.kill()
        trainer.wait(timeout=20)


def test_a_version_that_is_not_held_is_not_waited_for_beyond_the_deadline(transport: BroadcastTransport) -> None:
    ticket = transport.put(1, make_weights(1), copy=True)
    transport.drop_before(2)
    with pytest.raises(SyncError, match=r"\[E5506\]"):
        receive(ticket, timeout_s=1.0)
