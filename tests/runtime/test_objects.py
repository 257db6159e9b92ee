"""Tensors that travel by reference inside the process: handed over as they are, and gone when dropped."""

from __future__ import annotations

import pickle

import pytest
import torch

from trinity.common.errors import SyncError
from trinity.runtime.objects import LocalObjects, MemoryObjects


def test_a_local_object_is_handed_over_itself() -> None:
    tensors = {"w": torch.ones(2)}
    reference = LocalObjects().put(tensors)
    assert reference.load() is tensors
    reference.drop()
    with pytest.raises(SyncError, match=r"\[E5704\]"):
        reference.load()


def test_a_local_reference_that_is_sent_away_names_a_copy_in_memory() -> None:
    shared = torch.arange(3.0)
    reference = LocalObjects().put({"w": shared, "tied": shared})
    sent = pickle.loads(pickle.dumps(reference))  # noqa: S301  as a call to another process does
    assert torch.equal(sent.load()["tied"], shared)
    assert sent.load()["w"].data_ptr() != shared.data_ptr()
    reference.drop()
    with pytest.raises(SyncError, match=r"\[E5704\]"):
        sent.load()


def test_only_this_process_hands_over_the_tensors_themselves() -> None:
    assert LocalObjects().is_local
    assert not MemoryObjects().is_local
