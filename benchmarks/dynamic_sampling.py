"""Dynamic sampling beside plain GRPO on the quickstart's task: accuracy by the number of trained rollouts.

For each seed the quickstart's imitation stage runs once. Both runs start from its checkpoint and differ in nothing but
the operator `dapo_dynamic_sampling` and the refill of what it drops, so that a training step has as many rollouts, and
the same learning rate, in both. A finished run is one line of `results.jsonl` and is not made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml
from staleness import run, warm_up

SETTINGS = ("plain", "dynamic")
LEVEL = 0.9
EXPLORE_STEPS = 10
EVAL_INTERVAL = 1
REFILL_BATCHES = 64
_PIPELINE = {"operators": [{"name": "dapo_dynamic_sampling"}], "max_refill_batches": REFILL_BATCHES}

Point = tuple[float, float]


class Watch:
    """What the metrics of a run say.

    Attributes:
        trained: rollouts trained so far, by training step.
        issued: rollouts begun so far, by explore step.
        accuracy: accuracy on the held-out problems and version of the weights, by explore step and kind.
    """

    def __init__(self) -> None:
        self.trained: dict[int, float] = {0: 0.0}
        self.issued: dict[int, float] = {}
        self.accuracy: dict[str, dict[int, Point]] = {"greedy": {}, "sampled": {}}

    def __call__(self, actor: str, step: int, values: Mapping[str, float]) -> None:
        """Take one line of metrics."""
        if "sample/rollout_count" in values:
            self.trained[step] = values["fate/trained"]
        if "rollout/model_version" in values:
            self.issued[step] = values["fate/issued"]
        for kind, found in self.accuracy.items():
            if (value := values.get(f"eval/{kind}/accuracy/mean@1")) is not None:
                found[step] = (values["eval/model_version"], value)

    def curve(self, kind: str) -> list[Point]:
        """Return the accuracy of a kind over the rollouts that its weights were trained on."""
        return [(self.trained[int(version)], value) for _, (version, value) in sorted(self.accuracy[kind].items())]


def cell(folder: Path, model: Path, *, seed: int, setting: str, steps: int) -> dict[str, Any]:
    """Train with one setting from one seed's model; return its result.

    Raises:
        RuntimeError: the run failed, or a training step had fewer rollouts than it was to have.
    """
    directory = folder / f"seed_{seed}"
    tree = yaml.safe_load((directory / "quickstart.yaml").read_text(encoding="utf-8"))
    stage = tree.pop("stages")[1]
    shutil.rmtree(directory / "cells" / setting, ignore_errors=True)
    tree |= {"name": setting, "mode": "both", "checkpoint_root_dir": str(directory / "cells" / setting)}
    tree["model"]["model_path"] = str(model)
    (held_out,) = stage["buffer"]["explorer_input"]["eval_tasksets"]
    stage["buffer"]["explorer_input"]["eval_tasksets"] = [
        held_out | {"name": "greedy", "rollout_args": {"temperature": 0.0}},
        held_out | {"name": "sampled", "rollout_args": {"temperature": 1.0}},
    ]
    tree |= {key: stage[key] for key in ("algorithm", "buffer", "explorer", "synchronizer")}
    tree["buffer"]["total_steps"] = steps
    tree["explorer"]["eval_interval"] = EVAL_INTERVAL
    tree["trainer"] |= {"save_interval": 0, "save_hf_checkpoint": "never"}
    if setting == "dynamic":
        tree["data_processor"] = {"experience_pipeline": _PIPELINE}
    watch, started, cpu = Watch(), time.perf_counter(), time.process_time()
    run(tree, directory / f"{setting}.yaml", watch)
    seconds = {"seconds": round(time.perf_counter() - started, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    shutil.rmtree(directory / "cells" / setting)
    size = tree["buffer"]["train_batch_size"]
    if any(after - before != size for before, after in pairwise(watch.trained.values())):
        raise RuntimeError(f"{setting}: every training step was to have {size} rollouts, got {watch.trained}")
    curves = {kind: watch.curve(kind) for kind in watch.accuracy}
    return {
        "seed": seed, "setting": setting, "steps": steps, "trained": max(watch.trained.values()),
        "issued": max(watch.issued.values()), **curves, **seconds,
    }  # fmt: skip


def area(curve: list[Point]) -> float:
    """Return the mean accuracy over the trained rollouts: the area under the curve by its width."""
    parts = [(x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(curve)]
    return sum(parts) / (curve[-1][0] - curve[0][0])


def rollouts_to(curve: list[Point], level: float) -> float | None:
    """Return how many trained rollouts first give an accuracy of `level`, between two evaluations along the line.

    None where no evaluation has it.
    """
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y0 < level <= y1:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    return None


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as Markdown, means over the seeds, with the single values in brackets."""
    lines = [
        f"| accuracy | setting | mean over the trained rollouts | trained rollouts to {LEVEL:g} "
        "| at the end | begun / trained |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ("greedy", "sampled"):
        for setting in SETTINGS:
            found = [result for result in results if result["setting"] == setting]
            if not found:
                continue
            curves = [[(x, y) for x, y in result[kind]] for result in found]
            cells = (
                _spread([area(curve) for curve in curves], digits=3),
                _spread([rollouts_to(curve, LEVEL) for curve in curves], digits=0),
                _spread([curve[-1][1] for curve in curves], digits=3),
                _spread([result["issued"] / result["trained"] for result in found], digits=2),
            )
            lines.append(f"| {kind} | {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(results: list[dict[str, Any]]) -> str:
    """Return dynamic minus plain over the seeds, each with its standard error, as sentences; empty for one seed."""
    by_seed = {(result["seed"], result["setting"]): result for result in results}
    seeds = sorted({seed for seed, _ in by_seed})
    if len(seeds) < 2:
        return ""
    measures: dict[str, Callable[[list[Point]], float]] = {
        "the mean over the trained rollouts": area,
        "the accuracy at the end": lambda curve: curve[-1][1],
    }
    lines = []
    for kind in ("greedy", "sampled"):
        for name, measure in measures.items():
            found = [measure(by_seed[seed, "dynamic"][kind]) - measure(by_seed[seed, "plain"][kind]) for seed in seeds]
            error = stdev(found) / len(found) ** 0.5
            higher = sum(value > 0 for value in found)
            lines.append(
                f"{kind}: dynamic changes {name} by {mean(found):+.4f} +- {error:.4f}; "
                f"higher on {higher} of {len(seeds)} seeds."
            )
    return "\n".join(lines)


def _spread(values: list[float | None], *, digits: int) -> str:
    texts = ["never" if value is None else f"{value:.{digits}f}" for value in values]
    reached = [value for value in values if value is not None]
    middle = f"{mean(reached):.{digits}f}" if len(reached) == len(values) else "-"
    return f"{middle} ({', '.join(texts)})" if len(values) > 1 else texts[0]


def main() -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where models, runs and results are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 1, 2])
    parser.add_argument("--steps", type=int, default=EXPLORE_STEPS, help="explore steps of a run")
    parser.add_argument("--warm-up-steps", type=int, help="steps of imitation; the quickstart's without it")
    parser.add_argument("--json", action="store_true", help="print the results instead of the table")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.jsonl"
    file.touch()
    wanted = [
        {"seed": seed, "setting": setting, "steps": arguments.steps}
        for seed in arguments.seeds
        for setting in SETTINGS
    ]  # fmt: skip
    for want in wanted:
        if not any(want.items() <= known.items() for known in _read(file)):
            model = warm_up(folder, seed=want["seed"], steps=arguments.warm_up_steps)
            done = cell(folder, model, seed=want["seed"], setting=want["setting"], steps=want["steps"])
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(done) + "\n")
    results = [result for want in wanted for result in _read(file) if want.items() <= result.items()]
    print(json.dumps(results) if arguments.json else f"{table(results)}\n\n{differences(results)}")


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
