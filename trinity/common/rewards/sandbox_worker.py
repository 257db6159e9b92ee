"""The process that runs computer algebra on what a model wrote.

It reads and writes one JSON line per call. `sandbox.Sandbox` starts it and kills it at a deadline. It holds no
secrets, writes no files, and limits its own memory and processor time.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 1 << 30
# Above this share of the memory limit, a result may rest on an allocation failure that the library swallowed.
MEMORY_ALARM_FRAC = 0.9


def _as_latex(text: str) -> str:
    return text if "$" in text or "\\boxed" in text or "\\[" in text else f"${text}$"


def equal(truth: str, answer: str, is_marked: bool) -> bool:
    """Return whether `answer` equals `truth` as mathematics.

    A truth that is no mathematics equals nothing.

    Args:
        truth: the right answer, in LaTeX or plain.
        answer: the response's answer, or its tail where none is marked.
        is_marked: whether `answer` is the answer alone.
    """
    from math_verify import parse, verify

    # The process is killed at its deadline, so the library's own signal-based timeouts stay off.
    target = parse(_as_latex(truth), parsing_timeout=None)
    given = parse(_as_latex(answer) if is_marked else answer, parsing_timeout=None)
    if not given and is_marked:
        given = parse(answer, parsing_timeout=None)
    if not target or not given:
        return False
    return bool(verify(target, given, timeout_seconds=None))


def match(pattern: str, text: str) -> bool:
    """Return whether a configured pattern matches at the start of `text`."""
    return re.match(pattern, text, re.DOTALL | re.MULTILINE) is not None


OPERATIONS: dict[str, Callable[..., bool]] = {"equal": equal, "match": match}


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _limit_cpu(seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _peak_bytes() -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            peak = next((line for line in status if line.startswith("VmPeak:")), "VmPeak: 0 kB")
    except OSError:
        return 0
    return int(peak.split()[1]) * 1024


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    _limit_cpu(float(request["deadline_s"]))
    try:
        value = OPERATIONS[request["operation"]](**request["arguments"])
    # The library may raise anything on such text; whatever it is becomes the reply, and a failure in the parent.
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    if _peak_bytes() > MEMORY_BYTES * MEMORY_ALARM_FRAC:
        return {"error": f"needs more than {MEMORY_BYTES >> 20} MiB of memory", "is_last": True}
    return {"value": value}


def main() -> None:
    """Serve requests from standard input until it closes."""
    for number in (signal.SIGINT, signal.SIGHUP):  # they mean the run, which ends its workers
        signal.signal(number, signal.SIG_IGN)
    # Standard output belongs to the protocol; whatever a library prints goes nowhere.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii", newline="\n")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    equal("1", "2", True)
    _limit_memory()
    replies.write(json.dumps({"value": "ready"}) + "\n")
    replies.flush()
    for line in sys.stdin:
        reply = _answer(json.loads(line))
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if reply.get("is_last"):
            return


if __name__ == "__main__":
    main()
