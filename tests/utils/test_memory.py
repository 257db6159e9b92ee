from __future__ import annotations

import subprocess
import sys

import pytest

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
    # Twenty times 12 MiB are 61 440 pages of 4 KiB if every tensor is mapped anew.
    assert int(done.stdout) < 6000
