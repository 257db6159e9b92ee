"""The parts of `make gpu`, the most valuable first, and the time that each may take."""

from __future__ import annotations

import sys

from tools.gpu.report import Part

TOTAL_S = 530.0
"""Of all parts and of looking at the machine; with the start of Python less than nine minutes."""
FACTS_S = 30.0
WHOLE_RUNS = ("tests/e2e/test_lora.py", "tests/e2e/test_critic.py", "tests/e2e/test_algorithms.py")


def parts_of(device: str, *, is_tiny: bool) -> list[Part]:
    """Return the parts for a device; `is_tiny` takes the same ways with sizes that say nothing."""
    module = (sys.executable, "-m")
    where, small = ("--device", device), ("--tiny",) if is_tiny else ()
    benchmark = (sys.executable, "benchmarks/gpu.py", "--out", "{out}/figures.json", *where)
    files = ("--files", "tests/gpu/test_engine.py") if is_tiny else ()
    parts = [
        Part("tests", "engine, every trainer path, weight sync, memory",
             (*module, "tools.gpu.suite", "{out}", *where, *files), 160, 220),
        Part("small benchmark", "decoding, training and sync of 0.5B parameters against their limits",
             (*benchmark, *(small or ("--shapes", "0.5B", "--collective"))), 40, 60),
        Part("quickstart", "learns, twice with bitwise identical results",
             (*module, "tools.gpu.quickstart", "{out}", *small), 90, 150),
        Part("4B benchmark", "the same of 4B parameters, or of what fits",
             (*benchmark, *(small or ("--shapes", "4B", "1.7B", "--first-that-fits"))), 110, 150),
        Part("vllm", "GRPO steps of a run with the vLLM engine",
             (*module, "tools.gpu.vllm_step", "{out}", *where), 75, 120, package="vllm"),
    ]  # fmt: skip
    if not is_tiny:
        # Their bounds are those of the CPU, so that a failure may be no fault: told, and not counted.
        runs = (*module, "tools.gpu.suite", "{out}", "--device", "cpu", "--files", *WHOLE_RUNS)
        parts.append(Part("whole runs", "every algorithm, as the CPU's tests have it", runs, 0, 150, counts=False))
    return parts
