from __future__ import annotations

import subprocess
import sys

import pytest

from trinity.utils.memory import shown_bytes

FAULTS = """\
import resource, sys
import torch
from trinity.utils.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(3, 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the setting is one of the GNU C library")
def test_freed_memory_is_used_again_without_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Twenty times 12 MiB are 61 440 pages of 4 KiB if every tensor is mapped again.
    assert int(done.stdout) < 6000


def test_bytes_are_shown_in_the_unit_that_tells_them_apart() -> None:
    sizes = [0, 1023, 1024, 5 * 2**20, 1.25 * 2**30, 1023 * 2**30, 3 * 2**40, 5000 * 2**40]
    shown = ["0 bytes", "1023 bytes", "1 KiB", "5 MiB", "1.25 GiB", "1023 GiB", "3 TiB", "5000 TiB"]
    assert [shown_bytes(size) for size in sizes] == shown
