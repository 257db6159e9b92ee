"""Workers of Ray in the clusters of tests: real ones, forked from a process that has imported what they would.

A raylet starts this program instead of Ray's own for a worker. It hands its arguments, environment and output to a
server, which forks a process that continues as Ray's program does, and waits until that one has ended. So the seconds
that each worker needs for its imports are spent once. Clusters that a run or `ray start` begins have Ray's own program.
"""

from __future__ import annotations

import json
import os
import socket
import sys

PLACE = "TRINITY_TEST_RAY_WORKERS"
MOST_BYTES = 1 << 20


def ask() -> None:
    """Let the server fork the worker that this process was started for, and wait for its end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.environ[PLACE])
        order = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(server, [order], [0, 1, 2])
        server.recv(1)


if __name__ == "__main__":
    ask()
