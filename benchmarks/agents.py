"""Two agents learn by reinforcement learning, each through the workflow's model and through HTTP with the plain
`openai` client.

A calculator's tool and a guessing game of several turns: what they reach, and whether both ways end with the same
weights.
A run that is complete is not repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import agent_tasks
import yaml
from algorithms import trinity_run

from trinity.monitor.jsonl import read_metrics
from trinity.summary.facts import latest_hf_model

WAYS = ("workflow", "client")
LEAST_GAIN = 0.3
SUCCESS = "eval/held_out/success/mean@1"


def start_of(folder: Path, name: str, *, seed: int) -> Path:
    """Return the model after the imitation."""
    agent_tasks.prepare(folder, name, seed=seed)
    job = folder / "checkpoints" / "agents" / f"{name}_sft"
    if latest_hf_model(job) is None:
        _run(folder, agent_tasks.imitation(folder, name, seed=seed))
    model = latest_hf_model(job)
    assert model is not None, "the imitation ends with a checkpoint"
    return model


def _run(folder: Path, tree: dict[str, Any]) -> float:
    config = folder / f"{tree['name']}.yaml"
    config.write_text(yaml.safe_dump(tree, sort_keys=False))
    return trinity_run(config)


def measured(folder: Path, name: str, way: str, *, seed: int, steps: int | None) -> dict[str, Any]:
    """Run an agent one way; return its curve and the digest of its weights."""
    start = start_of(folder, name, seed=seed)
    seconds = _run(folder, agent_tasks.reinforcement(folder, name, way, start=start, seed=seed, steps=steps))
    job = folder / "checkpoints" / "agents" / f"{name}_{way}"
    curve = [(line["step"], line[SUCCESS]) for line in read_metrics(job / "metrics.jsonl") if SUCCESS in line]
    result = {"before": curve[0][1], "after": curve[-1][1], "curve": curve, "seconds": round(seconds, 1)}
    trained = latest_hf_model(job)
    assert trained is not None, "the run ends with a checkpoint"
    return result | {"weights": digest_of(trained)}


def digest_of(model: Path) -> str:
    """Return the digest of a model's weights: other tokens would have given others."""
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| agent | way | success before | after | same weights | s |", "|---|---|---|---|---|---|"]
    for name, ways in results.items():
        same = "yes" if len({result["weights"] for result in ways.values()}) == 1 else "**no**"
        for way, result in ways.items():
            figures = f"{result['before']:.3f} | {result['after']:.3f} | {same} | {result['seconds']:.0f}"
            lines.append(f"| {name} | {way} | {figures} |")
    return "\n".join(lines)


def main() -> int:
    """Run what the arguments ask for; return 1 if an agent did not learn or the ways differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("agents"), help="folder of the runs")
    parser.add_argument("--only", nargs="*", choices=tuple(agent_tasks.GAMES), default=list(agent_tasks.GAMES))
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--steps", type=int, help="of the reinforcement; default: those of the recipe")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    folder = arguments.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in arguments.only:
        results[name] = {way: measured(folder, name, way, seed=arguments.seed, steps=arguments.steps) for way in WAYS}
        print(table({name: results[name]}), file=sys.stderr, flush=True)
    print(json.dumps(results, indent=1) if arguments.json else table(results))
    done = [result for ways in results.values() for result in ways.values()]
    has_learned = all(result["after"] - result["before"] >= LEAST_GAIN for result in done)
    are_same = all(len({result["weights"] for result in ways.values()}) == 1 for ways in results.values())
    return int(not (has_learned and are_same))


if __name__ == "__main__":
    sys.exit(main())
