"""The other side of the collective sync of `gpu_parts.py`: receives the version whose ticket it reads."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trinity.common.weights import Ticket, receive


def main() -> None:
    """Say that it is ready, read a ticket, receive, and print the seconds as JSON."""
    print("ready", flush=True)
    ticket = Ticket.from_json(sys.stdin.readline())
    started = time.perf_counter()
    receive(ticket, timeout_s=60.0)
    print(json.dumps({"received_s": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
