"""Objects that travel by reference: inside the process, between processes, and the errors of those that are gone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from trinity.common.errors import SyncError
from trinity.runtime.objects import LocalObjects, MemoryObjects, get_object, register_opener


def test_a_local_object_is_handed_over_itself() -> None:
    tensors = {"w": torch.ones(2)}
    reference = LocalObjects().put(tensors)
    assert get_object(reference) is tensors
    LocalObjects().drop(reference)
    with pytest.raises(SyncError, match=r"\[E5502\]"):
        get_object(reference)


def test_a_local_object_is_refused_in_another_process() -> None:
    reference = LocalObjects().put({}) | {"pid": 1}
    with pytest.raises(SyncError, match=r"\[E5505\] .*process 1 .*sync_method: checkpoint"):
        get_object(reference)


def test_a_memory_object_reaches_another_process_and_is_gone_when_dropped() -> None:
    objects = MemoryObjects()
    shared = torch.arange(3.0)
    reference = objects.put({"w": shared, "tied": shared})
    code = f"from trinity.runtime.objects import get_object; print(get_object({reference})['tied'].sum().item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "3.0"
    objects.drop(reference)
    objects.drop(reference)
    with pytest.raises(SyncError, match=r"\[E5502\]"):
        get_object(reference)


def test_a_store_that_nobody_registered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SyncError, match=r"\[E5505\] .*'elsewhere' \(known here: local, memory"):
        get_object({"store": "elsewhere"})
    monkeypatch.setattr("trinity.runtime.objects._OPENERS", {})
    register_opener("elsewhere", lambda reference: {"w": torch.tensor(reference["value"])})
    assert get_object({"store": "elsewhere", "value": 3})["w"] == 3
