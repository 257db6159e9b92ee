"""A Ray cluster in a process of its own, with the rules of tokens that its environment asks for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

HEAD = """
import sys
from ray.cluster_utils import Cluster
made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
print("at", made.address, flush=True)
sys.stdin.read()
made.shutdown()
"""


@contextlib.contextmanager
def cluster_process(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the address of a cluster whose processes have `env` in their environment."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield next(line.split()[1] for line in process.stdout if line.startswith("at "))
    finally:
        process.stdin.close()
        process.wait(60)
