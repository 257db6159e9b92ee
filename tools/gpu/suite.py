"""The tests that need a CUDA device, in one process after another: a crash or a hang costs one test, not the rest.

Usage: python -m tools.gpu.suite OUT [--device cpu] [--limit-s S] [--files FILE...]

OUT/tests.jsonl has every test as it ends, OUT/figures.json their counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tools.gpu.process import tail
from tools.gpu.records import append_line, counts, lines, recorded, write_json

ROOT = Path(__file__).resolve().parents[2]
OWN = "tests/gpu"
MARK = "mark.gpu"
MAX_PROCESSES = 25
FINE = {"passed", "skipped"}


def marked_files() -> list[str]:
    """Return the test files that have tests for a CUDA device, those of the device fixture first."""
    own = sorted((ROOT / OWN).glob("test_*.py"))
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if MARK in path.read_text(encoding="utf-8")]
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys([*own, *files])]


def run(out: Path, files: list[str], *, marker: str, limit_s: float) -> bool:
    """Run the tests of `files` that `marker` selects; return whether all of them passed or were skipped."""
    record = out / "tests.jsonl"
    # Tiny models on the CPU, which the device is compared with, gain nothing from many threads.
    env = {"OMP_NUM_THREADS": "2"} | os.environ | {"GPU_TESTS_FILE": str(record), "GPU_TEST_LIMIT_S": str(limit_s)}
    env |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # what a deterministic run sets before it loads PyTorch
    command = [sys.executable, "-m", "pytest", "-p", "tools.gpu.recorder", "-p", "no:cacheprovider", "-m", marker]
    command += ["-q", "--continue-on-collection-errors", "--tb=short", f"--basetemp={out / 'tmp'}", *files]
    is_whole = False
    for _ in range(MAX_PROCESSES):
        begun = _begun(record)
        status = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
        is_whole = lines(record)[-1:] in [[{"finished": number}] for number in (0, 1, 5)]  # 5: nothing was left to run
        _mark_lost(out, record, status)
        write_json(out / "figures.json", counts(recorded(record)))
        if is_whole or _begun(record) == begun:
            break
        print(f"the tests' process ended with {status}; the rest continues in another one", flush=True)
    tests = recorded(record)
    return is_whole and bool(tests) and all(test["outcome"] in FINE for test in tests)


def _begun(record: Path) -> int:
    return sum("start" in line for line in lines(record))


def _mark_lost(out: Path, record: Path, status: int) -> None:
    """Write down how the test ended that took its process with it, and where its threads were."""
    stacks = out / "tests.stacks"
    for test in recorded(record):
        if test["outcome"] == "lost":
            where = "\n".join(tail(stacks)) if stacks.exists() else ""
            how = "it took too long" if where else f"its process ended with {status}"
            append_line(record, end=test["test"], outcome="hung" if where else "crashed", seconds=None,
                        message=f"{how}\n{where}".strip())  # fmt: skip


def main() -> None:
    """Run them; the exit status is 1 unless all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--files", nargs="*", default=[])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit-s", type=float, default=60.0, help="longest that a test may take")
    arguments = parser.parse_args()
    marker = "gpu" if arguments.device == "cuda" else "not gpu and not nightly"
    sys.exit(not run(arguments.out, arguments.files or marked_files(), marker=marker, limit_s=arguments.limit_s))


if __name__ == "__main__":
    main()
