"""Explorer and trainer in turns, with batches that overlap, and with tasks that begin one by one: an agent's slow tool.

The calculator of `agents.py` learns with a tool that takes seconds, log-normal with a heavy tail. Every setting does
the same training steps from the same start; the seconds are those between two training steps in the middle of the run.
A run that is complete is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import agent_tasks
import yaml
from agents import SUCCESS, start_of
from algorithms import trinity_run

from trinity.buffer.store import ExperienceStore
from trinity.monitor.jsonl import read_metrics

GAME = "calculator"
ASYNC = {"sync_style": "fully_async", "max_staleness": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "in turns": {"sync_style": "fixed"},
    "batches overlap": ASYNC,
    "tasks one by one": ASYNC | {"update_in_flight": True},
}
BASE = "in turns"
TOOL_SIGMA = 1.2
INFLIGHT = 3


def configured(
    folder: Path, setting: str, *, start: Path, seed: int, steps: int, tool_s: float, is_tiny: bool = False
) -> dict[str, Any]:
    """Return the configuration of a run; `is_tiny` takes the same path with sizes that say nothing."""
    tree = agent_tasks.reinforcement(folder, GAME, "workflow", start=start, seed=seed, steps=steps)
    tree |= {"name": f"{setting.replace(' ', '_')}_{seed}", "deterministic": False}
    tree["synchronizer"] |= SETTINGS[setting]
    explorer, tasks = tree["explorer"], tree["buffer"]["explorer_input"]
    explorer |= {"eval_interval": 10 * steps, "concurrent_mode": "asynchronous"}
    explorer["runner_per_model"] = (INFLIGHT + 1) * tree["buffer"]["batch_size"]
    if "max_staleness" in SETTINGS[setting]:
        explorer["max_inflight_batches"] = INFLIGHT
    (held_out,) = tasks["eval_tasksets"]
    held_out |= {"default_workflow_type": tasks["default_workflow_type"], "rollout_args": {"temperature": 0.0}}
    taskset = tasks["taskset"]
    arguments = taskset["workflow_args"] | {"tool_s": tool_s, "tool_sigma": TOOL_SIGMA}
    taskset |= {"default_workflow_type": "slow_calculator_by_workflow", "workflow_args": arguments}
    if is_tiny:
        tree["buffer"]["batch_size"] = tree["algorithm"]["repeat_times"] = 4
    return tree


def measured(folder: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Run a configuration unless it was; return its figures.

    Raises:
        RuntimeError: the run failed, or rollouts were lost or trained twice.
    """
    job = folder / "checkpoints" / "agents" / tree["name"]
    file = job / "overlap.json"
    if not file.exists():
        config = folder / f"{tree['name']}.yaml"
        config.write_text(yaml.safe_dump(tree, sort_keys=False))
        seconds = trinity_run(config)
        file.write_text(json.dumps(figures(job, tree) | {"seconds": seconds}))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def figures(job: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Return what the metrics and the store of a finished run say."""
    lines = read_metrics(job / "metrics.jsonl")
    trained = sorted((line["step"], line) for line in lines if "sample/staleness/max" in line)
    edge = len(trained) // 6
    middle = [line for _, line in trained][edge : len(trained) - edge]
    curve = sorted((line["step"], line[SUCCESS]) for line in lines if SUCCESS in line)
    steps, rollouts = tree["buffer"]["total_steps"], tree["buffer"]["batch_size"] * tree["algorithm"]["repeat_times"]
    with ExperienceStore(f"sqlite:///{job}/buffer/experience.db") as store:
        produced = store.num_produced("experience_buffer", run=f"{tree['project']}/{tree['name']}")
        counts = store.counts("experience_buffer", f"{tree['project']}/{tree['name']}")
    failed = sum(line.get("rollout/failed_run_count", 0) + line.get("rollout/timeout_run_count", 0) for line in lines)
    return {
        "step_s": (middle[-1]["time"] - middle[0]["time"]) / (len(middle) - 1),
        "steps": len(trained),
        "age_mean": mean(line["sample/staleness/mean"] for _, line in trained),
        "age_max": max(line["sample/staleness/max"] for _, line in trained),
        "lost": steps * rollouts - produced - failed + counts["ready"] + counts["claimed"],
        "before": curve[0][1],
        "after": curve[-1][1],
    }


def table(results: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Return the results as a Markdown table."""
    heads = "seed | setting | s a step | throughput | success before | after | staleness mean (max) | lost"
    lines = [f"| {heads} |", "|---|---|---|---|---|---|---|---|"]
    for seed, settings in results.items():
        for name, found in settings.items():
            ratio = settings[BASE]["step_s"] / found["step_s"]
            lines.append(
                f"| {seed} | {name} | {found['step_s']:.2f} | {ratio:.2f} | {found['before']:.3f} | "
                f"{found['after']:.3f} | {found['age_mean']:.2f} ({found['age_max']:.0f}) | {found['lost']:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("overlap"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tool-s", type=float, default=0.5, help="mean seconds of a call of the tool")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    folder = arguments.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[int, dict[str, dict[str, Any]]] = {}
    for seed in arguments.seeds:
        place = folder / f"seed_{seed}"
        place.mkdir(exist_ok=True)
        start = start_of(place, GAME, seed=seed)
        sizes = {"start": start, "seed": seed, "steps": arguments.steps, "tool_s": arguments.tool_s}
        for setting in SETTINGS:
            found = measured(place, configured(place, setting, **sizes))
            results.setdefault(seed, {})[setting] = found
            print(setting, json.dumps(found), file=sys.stderr, flush=True)
    print(json.dumps(results, indent=1) if arguments.json else table(results))


if __name__ == "__main__":
    main()
