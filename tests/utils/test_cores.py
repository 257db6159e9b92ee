"""Cores are counted, and not their hardware threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trinity.utils import cores
from trinity.utils.cores import available_cores


def test_threads_are_as_many_as_cores_and_not_as_their_hardware_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    cpus = sorted(os.sched_getaffinity(0))
    assert available_cores() == len(cpus), "the system says nothing of cores"
    for cpu in cpus:
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{cpus[0]}-{cpus[-1]}\n")
    assert available_cores() == 1, "all are threads of one core"
