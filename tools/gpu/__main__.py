"""`python -m tools.gpu`: run the parts, write `gpu_report.json`, show a table.

The exit status is 0 if no part failed, 1 if one did, 2 where nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from tools.gpu.parts import FACTS_S, TOTAL_S, parts_of
from tools.gpu.process import adopt_orphans
from tools.gpu.report import ROOT, Report, commit, environment, run_parts, summary


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    arguments = parsed()
    started = time.monotonic()
    adopt_orphans()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        machine = facts()
        reason = refusal(machine, arguments.device)
    except OSError as error:
        reason = str(error)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    work = arguments.out.with_suffix("").absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    values = {"commit": commit(), "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "device": arguments.device,
              "tiny": arguments.tiny, "machine": machine}  # fmt: skip
    report = Report(arguments.out, values, started)
    packages = machine["packages"]
    for line in packages["missing_required"]:
        print(f"required and not installed: {line}; what needs it will fail")
    chosen = parts_of(arguments.device, is_tiny=arguments.tiny)
    if arguments.only:
        chosen = [part for part in chosen if part.name in arguments.only]
    is_fine = False
    try:
        is_fine = run_parts(chosen, report, work=work, total_s=arguments.total_s, missing=packages["missing_optional"])
    except KeyboardInterrupt:
        report.write()
    print(summary(report.values))
    print(f"the report is in {arguments.out}, the logs in {work}")
    return 0 if is_fine else 1


def parsed() -> argparse.Namespace:
    """Return the command line's arguments."""
    names = [part.name for part in parts_of("cuda", is_tiny=False)]
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "gpu_report.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the same ways with sizes that say nothing")
    parser.add_argument("--only", action="append", choices=names, help="only this part; may be given several times")
    parser.add_argument("--total-s", type=float, default=TOTAL_S, help="seconds of all parts together")
    return parser.parse_args()


def facts() -> dict[str, Any]:
    """Return the facts of the machine, found by a process of their own: a driver may hang, a library may crash.

    Raises:
        OSError: it does not end in time, or not well.
    """
    command = [sys.executable, "-m", "tools.gpu.facts"]
    try:
        told = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=FACTS_S, check=True
        )
        found: dict[str, Any] = json.loads(told.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise OSError(f"PyTorch and the driver did not answer within {FACTS_S:g} s; look at nvidia-smi") from None
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        raise OSError(f"the machine's facts cannot be found: {error}\n{getattr(error, 'stderr', '')}") from error
    return found


def refusal(machine: dict[str, Any], device: str) -> str | None:
    """Return why nothing can be run here, None if something can."""
    told = f"{machine['executable']} (Python {machine['python']})"
    if machine.get("torch") is None:
        return f"PyTorch cannot be imported by {told}: {machine.get('error')}; nothing was run"
    if machine["transformers"] is None:
        return f"transformers cannot be imported by {told}: {machine.get('transformers_error')}; nothing was run"
    if device == "cuda" and not machine["devices"]:
        why = machine.get("error") or (
            f"torch {machine['torch']} is a build for CPUs" if machine.get("cuda") is None else "PyTorch sees none"
        )
        return (
            f"there is no CUDA device: {why} (driver {machine['driver'] or 'not there'}, {told}); nothing was run. "
            "With a GPU, name a Python whose torch sees it: make gpu PYTHON=/path/to/python3"
        )
    return None


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
