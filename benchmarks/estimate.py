"""What `trinity estimate` says before a run beside the memory that the run takes, for runs of different shapes.

    python benchmarks/estimate.py                     # all cases
    python benchmarks/estimate.py --only sft          # one
    python benchmarks/estimate.py --libraries         # what Python and the libraries take

Measured is the sum, over all processes of the run, of the most that each had in memory at once (`VmHWM` of
`/proc/<pid>/status`, shared pages of libraries counted in each). Estimated is the sum of the table of
`trinity estimate`, its measured part for Python and the libraries included. The share that the libraries take is
printed, too: what is left of both without it says more of a small model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from estimate_cases import CASES, STEPS, write_case

POLL_S = 0.05
MIB = 2**20
LIBRARIES = "Python and libraries", "compiled kernels"


def peaks_of(command: list[str], *, cwd: Path) -> tuple[dict[int, int], int]:
    """Run a command; return the peak of each of its processes in bytes, by its id, and its exit status."""
    with open(cwd / "output.txt", "wb") as output:
        process = subprocess.Popen(command, cwd=cwd, stdout=output, stderr=subprocess.STDOUT)
        peaks: dict[int, int] = {}
        while process.poll() is None:
            for pid in _tree_of(process.pid):
                size = _peak(pid)
                if size:
                    peaks[pid] = max(size, peaks.get(pid, 0))
            time.sleep(POLL_S)
    return peaks, process.returncode


def _tree_of(pid: int) -> list[int]:
    """Return a process and all below it."""
    found, waiting = [], [pid]
    while waiting:
        each = waiting.pop()
        found.append(each)
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                waiting += map(int, file.read_text().split())
            except OSError:
                continue  # it has just ended
    return found


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def estimated(file: Path) -> dict[str, Any]:
    """Return what `trinity estimate` says of a file of one stage."""
    done = subprocess.run(
        [sys.executable, "-m", "trinity", "estimate", "--config", str(file), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    stage: dict[str, Any] = json.loads(done.stdout)["stages"][0]
    return stage


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Return both numbers of a case, in bytes.

    Raises:
        RuntimeError: the run failed, or did not make its steps.
    """
    file = write_case(folder, CASES[name])
    said = estimated(file)
    started = time.perf_counter()
    peaks, status = peaks_of([sys.executable, "-m", "trinity", "run", "--config", str(file), "--quiet"], cwd=folder)
    steps = (folder / "jobs/estimate/run/metrics.jsonl").read_text().count('"time/train_step"') if not status else 0
    if steps != STEPS:
        raise RuntimeError(f"{name}: status {status}, {steps} of {STEPS} steps; {(folder / 'output.txt').read_text()}")
    libraries = sum(
        part["bytes"] * each["count"]
        for each in said["processes"]
        for part in each["parts"]
        if part["part"] in LIBRARIES
    )
    return {
        "case": name,
        "parameters": said["model"]["num_parameters"],
        "estimated": said["host_bytes"],
        "measured": sum(peaks.values()),
        "processes": sorted(peaks.values(), reverse=True),
        "libraries": libraries,
        "seconds": time.perf_counter() - started,
        "said": said["processes"],
    }


def _print(found: dict[str, Any]) -> None:
    said, had, libraries = (found[name] / MIB for name in ("estimated", "measured", "libraries"))
    print(
        f"| {found['case']} | {found['parameters'] / 1e6:.1f} M | {said:,.0f} | {had:,.0f} | {said / had - 1:+.1%} | "
        f"{said - libraries:,.0f} | {had - libraries:,.0f} | {found['seconds']:.0f} s |",
        flush=True,
    )


def libraries() -> None:
    """Print what a process takes that has imported what a run imports, and that of `trinity validate`."""
    modules = "trinity.launch.trainer_side, trinity.launch.explorer_side, trinity.trainer.verl.worker"
    code = f"import {modules}, trinity.engine.torch.engine; import torch; torch.ones(64, 64) @ torch.ones(64, 64)"
    folder = Path(tempfile.mkdtemp(prefix="estimate_"))
    for what, words in (("a stage", ["-c", code + "; import time; time.sleep(1)"]), ("torch alone",
                        ["-c", "import torch, time; time.sleep(1)"])):  # fmt: skip
        peaks, _ = peaks_of([sys.executable, *words], cwd=folder)
        print(f"{what}: {max(peaks.values()) / MIB:.0f} MiB")
    shutil.rmtree(folder)


def main() -> None:
    """Run the cases that the arguments ask for and print both numbers of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=CASES)
    parser.add_argument("--json", type=Path, help="file of all figures, with the parts of each estimate")
    parser.add_argument("--libraries", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.libraries:
        libraries()
        return
    print("| run | parameters | estimated MiB | measured MiB | off by | the same without libraries | | took |")
    print("|---|---|---|---|---|---|---|---|")
    results = []
    for name in arguments.only or CASES:
        folder = Path(tempfile.mkdtemp(prefix="estimate_"))
        try:
            results.append(measure(name, folder))
        finally:
            shutil.rmtree(folder)
        _print(results[-1])
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
