"""The quickstart, twice at the same time: it has to learn, and both have to end bitwise identical.

Usage: python -m tools.gpu.quickstart OUT [--tiny]

OUT/figures.json tells how far both have come and what is equal, also while they run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.gpu.records import lines, write_json
from trinity.monitor.headline import accuracy

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 1.0
LEAST_ACCURACY = 0.9
OF_THE_CLOCK = {"time", "perf"}
Line = tuple[str, str, int]
TINY = ("stages[0].trainer.total_steps=4", "stages[1].buffer.total_steps=2", "stages[1].explorer.eval_on_startup=false",
        "stages[1].explorer.eval_interval=2", "stages[1].buffer.explorer_input.eval_tasksets=[]")  # fmt: skip


def start(folder: Path, *, is_tiny: bool) -> subprocess.Popen[bytes]:
    """Return the process of a quickstart in `folder`."""
    command = [sys.executable, "-m", "trinity"]
    subprocess.run([*command, "quickstart", "--dir", str(folder), "--prepare-only"], cwd=ROOT, check=True)
    changes = [part for change in (TINY if is_tiny else ()) for part in ("--set", change)]
    run = [*command, "run", "--config", str(folder / "quickstart.yaml"), *changes]
    with (folder / "output.log").open("wb") as output:
        return subprocess.Popen(run, cwd=ROOT, env=dict(os.environ), stdout=output, stderr=output)


def measured(folder: Path) -> dict[Line, dict[str, Any]]:
    """Return the metrics lines by stage, actor and number, without what a clock has measured."""
    found = {}
    for file in sorted(folder.glob("checkpoints/**/metrics.jsonl")):
        for line in lines(file):
            values = {key: value for key, value in line.items() if not OF_THE_CLOCK & set(key.split("/"))}
            found[file.parent.name, str(line["actor"]), int(line["seq"])] = values
    return found


def weights(folder: Path) -> dict[str, str]:
    """Return a digest of every model that the run has saved."""
    files = sorted(folder.glob("checkpoints/**/huggingface/model.safetensors"))
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def compared(first: Path, second: Path) -> dict[str, Any]:
    """Return what two runs have in common so far: how many lines, the first that differs, models, accuracies."""
    one, other = measured(first), measured(second)
    both = [key for key in one if key in other]
    different = next((key for key in both if one[key] != other[key]), None)
    saved, again = weights(first), weights(second)
    return {
        "compared_lines": len(both),
        "first_difference": None if different is None else _difference(different, one[different], other[different]),
        "compared_models": len(saved.keys() & again.keys()),
        "equal_models": sum(saved[name] == again[name] for name in saved.keys() & again.keys()),
        "accuracies": [round(score, 4) for score in map(accuracy, one.values()) if score is not None],
    }


def _difference(line: Line, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    names = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    return {"line": list(line), "values": {name: [a.get(name), b.get(name)] for name in names[:5]}}


def problems(figures: dict[str, Any], statuses: list[int], *, is_tiny: bool) -> list[str]:
    """Return what is not as it must be."""
    found = [f"a run ended with {status}" for status in statuses if status]
    if figures["first_difference"] is not None:
        found.append(f"the runs differ: {figures['first_difference']}")
    if not figures["compared_lines"] or not figures["compared_models"]:
        found.append("nothing was there to compare")
    if figures["equal_models"] != figures["compared_models"]:
        found.append("the saved weights differ")
    if not is_tiny and max(figures["accuracies"] or [0.0]) < LEAST_ACCURACY:
        found.append(f"accuracy stays below {LEAST_ACCURACY}: {figures['accuracies']}")
    return found


def main() -> None:
    """Run both; the exit status is 1 unless they learn the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a few steps, which learn nothing")
    arguments = parser.parse_args()
    folders = [arguments.out / name for name in ("first", "second")]
    started = time.monotonic()
    runs = [start(folder, is_tiny=arguments.tiny) for folder in folders]
    while any(run.poll() is None for run in runs):
        time.sleep(POLL_S)
        write_json(arguments.out / "figures.json", compared(*folders))
    figures = compared(*folders) | {"run_s": round(time.monotonic() - started, 1)}
    wrong = problems(figures, [run.returncode for run in runs], is_tiny=arguments.tiny)
    write_json(arguments.out / "figures.json", figures | {"problems": wrong})
    for folder, run in zip(folders, runs, strict=True):
        if run.returncode:
            print((folder / "output.log").read_text(errors="replace")[-6000:])
    print("\n".join(wrong) or "both runs learn, and the same")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
