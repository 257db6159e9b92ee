"""Deltas of published weights: lossless, small, bounded on disk, and told apart from torn ones."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trinity.common.errors import SyncError
from trinity.common.weights import Ticket, fingerprint, receive
from trinity.common.weights import files as weight_files
from trinity.synchronizer.transport import FULL_EVERY, CheckpointTransport


def start() -> dict[str, Tensor]:
    """Return weights of several types."""
    generator = torch.Generator().manual_seed(3)
    return {
        "float": torch.randn(64, 257, generator=generator),
        "half": torch.randn(33, 31, generator=generator).bfloat16(),
        "frozen": torch.randn(1000, generator=generator),
        "number": torch.tensor(1.0),
        "empty": torch.zeros(0, 3),
    }


def trained(weights: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    """Return weights a small optimizer step further, with the values that arithmetic would lose."""
    generator = torch.Generator().manual_seed(100 + step)
    moved = {n: t.clone() for n, t in weights.items()}
    for name in ("float", "half"):
        noise = torch.randn(moved[name].shape, generator=generator).to(moved[name].dtype)
        moved[name] = moved[name] * (1 + 1e-6) + 1e-6 * noise
    moved["float"][0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-42])
    return moved


def forget_what_was_read() -> None:
    """Be a process that has read nothing yet."""
    weight_files._last_read.clear()


def test_every_version_comes_back_bit_by_bit_with_and_without_the_one_before(tmp_path: Path) -> None:
    transport, weights, tickets, marks = CheckpointTransport(tmp_path, is_delta=True), start(), [], []
    for version in range(1, FULL_EVERY + 3):
        tickets.append(transport.put(version, weights, copy=True))
        marks.append(fingerprint(weights))
        assert fingerprint(receive(tickets[-1], timeout_s=5.0)) == marks[-1]
        weights = trained(weights, version)
    assert ["base" in ticket.place for ticket in tickets] == [False, *[True] * (FULL_EVERY - 1), False, True]
    for ticket, mark in zip(tickets, marks, strict=True):
        forget_what_was_read()
        assert fingerprint(receive(Ticket.from_json(ticket.as_json()), timeout_s=5.0)) == mark
    sizes = [ticket.place["moved_bytes"] for ticket in tickets if "base" in ticket.place]
    assert max(sizes) < 0.6 * tickets[0].num_bytes, "a small step is much smaller than the weights"


def test_two_hundred_versions_stay_bounded_and_none_is_removed_while_it_is_read(tmp_path: Path) -> None:
    transport, weights, most = CheckpointTransport(tmp_path, is_delta=True), {"w": torch.arange(64.0)}, 0
    newest: list[Ticket] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            if newest:
                forget_what_was_read()
                try:
                    receive(newest[-1], timeout_s=5.0)
                except SyncError as error:
                    failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(1, 201):
        weights["w"] += 1
        newest.append(transport.put(version, weights, copy=True))
        transport.drop_before(version - 1)
        most = max(most, len(transport.versions()))
    is_over.set()
    reader.join(timeout=20)
    assert most <= FULL_EVERY + 2
    gone = [error for error in failures if "[E5502]" not in str(error)]
    assert not gone, "a reader gets a whole version or is told that it is gone"
    forget_what_was_read()
    assert receive(newest[-1], timeout_s=5.0)["w"][0] == 200


def test_a_lost_base_makes_the_next_version_whole_and_tells_the_reader(tmp_path: Path) -> None:
    transport, weights = CheckpointTransport(tmp_path, is_delta=True), start()
    transport.put(1, weights, copy=True)
    second = transport.put(2, trained(weights, 1), copy=True)
    for file in (tmp_path / "weights" / "version_1").iterdir():
        file.unlink()
    forget_what_was_read()
    with pytest.raises(SyncError, match=r"\[E5502\]"):
        receive(second, timeout_s=5.0)
    for file in (tmp_path / "weights" / "version_2").iterdir():
        file.unlink()
    assert "base" not in transport.put(3, trained(weights, 2), copy=True).place


def test_a_torn_delta_names_its_tensor(tmp_path: Path) -> None:
    transport, weights = CheckpointTransport(tmp_path, is_delta=True), start()
    transport.put(1, weights, copy=True)
    ticket = transport.put(2, trained(weights, 1), copy=True)
    file = tmp_path / "weights" / "version_2" / "delta.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    forget_what_was_read()
    with pytest.raises(SyncError, match=r"\[E5507\] .*tensor float"):
        receive(ticket, timeout_s=5.0)
