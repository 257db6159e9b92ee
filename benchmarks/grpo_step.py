"""CPU and wall seconds of one GRPO step: ours, and with `--trl-python` TRL's on the same work in the same run.

`--work` takes prompts of 1,000 tokens or episodes of six turns instead of the standard work, `--apart` adds our side
with a trainer and an engine that compute every row from its first token on.

Each side runs in a process of its own, in turns, `--rounds` times; the first step of a process is dropped and the
medians over all others are compared. CPU seconds count all threads and hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import work

from trinity.runtime.allocator import allocator_variables

HERE = Path(__file__).resolve().parent
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "TOKENIZERS_PARALLELISM": "false"}
OURS = ("ours", "apart")
Runs = dict[str, list[dict[str, Any]]]


def main() -> None:
    """Measure what the arguments ask for; print a table, or with `--json` one object."""
    arguments = _arguments()
    runs: Runs = {}
    with tempfile.TemporaryDirectory(prefix="grpo_work_") as place:
        folder = Path(place)
        work.build(folder, hidden=arguments.hidden, work=work.WORKS[arguments.work])
        for _ in range(arguments.rounds):
            for side, command in _commands(arguments, folder).items():
                runs.setdefault(side, []).append(_measured(side, command, timeout_s=arguments.timeout))
    result = summarize(runs)
    print(json.dumps(result, indent=1) if arguments.json else table(result))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl-python", type=Path, help="an interpreter that has TRL; without it only our side runs")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side, in turns")
    parser.add_argument("--steps", type=int, default=6, help="steps of a process, the dropped first one included")
    parser.add_argument("--threads", type=int, default=1, help="threads of a matrix product, on every side")
    parser.add_argument("--dtype", choices=("auto", "float32"), default="auto", help="of our products")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds after which a process has failed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--work", choices=work.WORKS, default="standard", help="what a step does")
    parser.add_argument("--apart", action="store_true", help="also our side where turns share nothing")
    parser.add_argument("--micro-tokens", type=int, help="most tokens of a micro-batch on our side")
    small = parser.add_argument_group("sizes, for a quick look at our side alone")
    small.add_argument("--hidden", type=int, default=256)
    small.add_argument("--prompts", type=int)
    small.add_argument("--samples", type=int)
    small.add_argument("--new", type=int)
    arguments = parser.parse_args()
    if arguments.trl_python and _sizes(arguments):
        parser.error("--prompts, --samples and --new are for our side alone; leave them out with --trl-python")
    if arguments.steps < 2 or arguments.rounds < 1:
        parser.error("--steps must be at least 2, because the first step is dropped, and --rounds at least 1")
    return arguments


def _sizes(arguments: argparse.Namespace) -> list[str]:
    """Return the sizes that were given, as arguments of `our_side.py`."""
    given = {"--prompts": arguments.prompts, "--samples": arguments.samples, "--new-tokens": arguments.new}
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def _commands(arguments: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    common = ["--folder", str(folder), "--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    common += ["--work", arguments.work]
    ours = [sys.executable, str(HERE / "our_side.py"), *common, *_sizes(arguments), "--dtype", arguments.dtype]
    ours += [] if arguments.micro_tokens is None else ["--micro-tokens", str(arguments.micro_tokens)]
    commands = {"ours": ours}
    if arguments.apart:
        commands["apart"] = [*ours, "--apart"]
    if arguments.trl_python:
        trl = [str(arguments.trl_python), str(HERE / "trl_side.py"), *common, "--variant"]
        commands |= {"trl": [*trl, "default"], "trl_best": [*trl, "best"]}
    return commands


def _measured(side: str, command: list[str], *, timeout_s: float) -> dict[str, Any]:
    """Return what the process of a side printed.

    Raises:
        SystemExit: it failed; with the end of its output.
    """
    paths = [str(HERE.parent), str(HERE)] if side in OURS else [str(HERE)]
    environment = os.environ | PASSIVE | {"PYTHONPATH": os.pathsep.join(paths)}
    environment |= allocator_variables(environment) if side in OURS else {}  # as `trinity run` does
    done = subprocess.run(
        command, env=environment, cwd=HERE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode:
        raise SystemExit(f"{side} failed with status {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def summarize(runs: Runs) -> dict[str, Any]:
    """Return medians over the steps of all rounds, peak memory in MiB, our parts, and ours / TRL's."""
    result: dict[str, Any] = {}
    for side, measured in runs.items():
        for unit in ("cpu_s", "wall_s"):
            steps = [seconds for run in measured for seconds in run[unit]]
            result[f"{side}_{unit}"] = statistics.median(steps)
            result[f"{side}_{unit}_min"] = min(steps)
        result[f"{side}_peak_rss_mib"] = max(run["peak_rss_mib"] for run in measured)
        result[f"{side}_steps"] = sum(len(run["cpu_s"]) for run in measured)
    for side in [side for side in OURS if side in runs]:
        parts = [part for run in runs[side] for part in run["parts_cpu_s"]]
        names = dict.fromkeys(name for part in parts for name in part)
        result[f"{side}_parts_cpu_s"] = {
            name: statistics.median(part.get(name, 0.0) for part in parts) for name in names
        }
        for fact in ("trained_sequences", "shared_tokens"):
            result[f"{side}_{fact}"] = [count for run in runs[side] for count in run[fact]]
    if "apart" in runs:
        result["ratio_apart_update_cpu_s"] = (
            result["ours_parts_cpu_s"]["update"] / result["apart_parts_cpu_s"]["update"]
        )
    for side in [side for side in runs if side != "ours"]:
        for unit in ("cpu_s", "wall_s", "peak_rss_mib"):
            result[f"ratio_{side}_{unit}"] = result[f"ours_{unit}"] / result[f"{side}_{unit}"]
    return result


def table(result: dict[str, Any]) -> str:
    """Return the result as lines of text."""
    names = {"ours": "ours", "apart": "ours, rows apart", "trl": "TRL, default", "trl_best": "TRL, best (in four)"}
    lines = [f"{'':<26}{'CPU s':>8}{'min':>8}{'wall s':>8}{'min':>8}{'peak MiB':>10}{'steps':>7}"]
    for side in [side for side in names if f"{side}_cpu_s" in result]:
        seconds = [result[f"{side}_{unit}"] for unit in ("cpu_s", "cpu_s_min", "wall_s", "wall_s_min")]
        cells = "".join(f"{value:8.2f}" for value in seconds)
        lines.append(f"{names[side]:<26}{cells}{result[f'{side}_peak_rss_mib']:10.0f}{result[f'{side}_steps']:7d}")
    for side in [side for side in OURS if f"{side}_cpu_s" in result]:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in result[f"{side}_parts_cpu_s"].items())
        lines.append(f"CPU s of {names[side]}: {parts}")
    if "ratio_apart_update_cpu_s" in result:
        lines.append(f"update of ours / of rows apart: CPU {result['ratio_apart_update_cpu_s']:.2f}")
    for side in [side for side in ("apart", "trl", "trl_best") if f"ratio_{side}_cpu_s" in result]:
        ratios = ", ".join(
            f"{what} {result[f'ratio_{side}_{unit}']:.2f}"
            for what, unit in (("CPU", "cpu_s"), ("wall", "wall_s"), ("memory", "peak_rss_mib"))
        )
        lines.append(f"ours / {names[side]}: {ratios}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
