"""Learning from rollouts that are N training steps old: plain, clipped and corrected losses on the quickstart's task.

For each seed the quickstart's imitation stage runs once. From its checkpoint each cell, a loss and a staleness, trains
with `synchronizer.sync_offset` set so that every rollout after the warm-up is exactly that old. A finished cell is one
line of `results.jsonl` and is not run again; a cell that was interrupted starts again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

STALENESS = (0, 2, 8, 16)
LOSSES: dict[str, dict[str, Any]] = {
    "plain": {"policy_loss_fn_args": {"fallback_to_policy_gradient": True}},
    "clipped": {},
    "corrected": {"rollout_correction": {"preset": "decoupled_token_is"}},
}
STEPS = 24


class Watch:
    """What the metrics of a cell say.

    Attributes:
        ages: staleness of the oldest and of the newest experience of each training step.
        rewards: mean reward of each training step.
        accuracies: accuracy on the held-out problems by kind of evaluation and explore step.
    """

    def __init__(self) -> None:
        self.ages: list[tuple[float, float]] = []
        self.rewards: list[float] = []
        self.accuracies: dict[str, dict[int, float]] = {"greedy": {}, "sampled": {}}

    def __call__(self, actor: str, step: int, values: Mapping[str, float]) -> None:
        """Take one line of metrics."""
        if "sample/staleness/max" in values:
            self.ages.append((values["sample/staleness/min"], values["sample/staleness/max"]))
            self.rewards.append(values["critic/rewards/mean"])
        for kind, found in self.accuracies.items():
            if f"eval/{kind}/accuracy/mean@1" in values:
                found[step] = values[f"eval/{kind}/accuracy/mean@1"]


def warm_up(folder: Path, *, seed: int, steps: int | None = None) -> Path:
    """Run the imitation stage of the quickstart of `seed` below `folder`, if that is not done; return its model.

    Args:
        folder: the folder of the table.
        seed: of the data, the weights and the run.
        steps: fewer steps than the quickstart's, for a try.
    """
    import yaml

    from trinity.quickstart.folder import prepare

    directory = folder / f"seed_{seed}"
    quickstart = prepare(directory, seed=seed)
    tree = yaml.safe_load(quickstart.config.read_text(encoding="utf-8"))
    tree["stages"] = tree["stages"][:1]
    if steps is not None:
        tree["stages"][0]["trainer"] |= {"total_steps": steps}
    job = run(tree, directory / "warm_up.yaml", None)
    return max(job.glob("global_step_*/actor/huggingface"))


def run(tree: Mapping[str, Any], path: Path, watch: Watch | None) -> Path:
    """Run a configuration in this process; return the job folder of its last stage.

    Raises:
        RuntimeError: the run failed.
    """
    import yaml

    from trinity.launch.run import RunOptions, plan_run, run_plan

    path.write_text(yaml.safe_dump(dict(tree), sort_keys=False), encoding="utf-8")
    options = RunOptions(on_metrics=watch)
    plan = plan_run(path, options)
    result = run_plan(plan, options)
    if result.exit_code:
        raise RuntimeError(f"{path} ended with status {result.exit_code}: {result.error}")
    return Path(plan.stages[-1].config.checkpoint_job_dir)


def cell(folder: Path, model: Path, *, seed: int, loss: str, staleness: int, steps: int, rate: float) -> dict[str, Any]:
    """Train one cell; return its result.

    Raises:
        RuntimeError: the run failed, or a rollout after the warm-up was not `staleness` steps old.
    """
    import yaml

    directory = folder / f"seed_{seed}"
    tree = yaml.safe_load((directory / "quickstart.yaml").read_text(encoding="utf-8"))
    stage = tree.pop("stages")[1]
    name = f"{loss}_{staleness}"
    shutil.rmtree(directory / "cells" / name, ignore_errors=True)
    tree |= {"name": name, "mode": "both", "checkpoint_root_dir": str(directory / "cells" / name)}
    tree["model"]["model_path"] = str(model)
    tree["algorithm"] = stage["algorithm"] | LOSSES[loss]
    tree["algorithm"]["optimizer"] |= {"lr": rate, "lr_scheduler_type": "constant"}
    rows = stage["buffer"]["batch_size"] * stage["algorithm"]["repeat_times"]
    (held_out,) = stage["buffer"]["explorer_input"]["eval_tasksets"]
    stage["buffer"]["explorer_input"]["eval_tasksets"] = [
        held_out | {"name": "greedy", "rollout_args": {"temperature": 0.0}},
        held_out | {"name": "sampled", "rollout_args": {"temperature": 1.0}},
    ]
    tree["buffer"] = stage["buffer"] | {"train_batch_size": rows, "total_steps": steps}
    tree["explorer"] = stage["explorer"] | {"eval_interval": steps + 1}
    tree["synchronizer"] = {"sync_style": "fixed", "sync_interval": 1, "sync_offset": staleness}
    tree["trainer"] |= {"save_interval": 0, "save_hf_checkpoint": "never"}
    watch, started, cpu = Watch(), time.perf_counter(), time.process_time()
    run(tree, directory / f"{name}.yaml", watch)
    seconds = {"seconds": round(time.perf_counter() - started, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    shutil.rmtree(directory / "cells" / name)
    expected = [(float(min(step, staleness)),) * 2 for step in range(steps)]
    if watch.ages != expected:
        raise RuntimeError(f"{name}: the rollouts were to be {expected} steps old, got {watch.ages}")
    accuracies = {
        f"{kind}_{when}": found[pick(found)]
        for kind, found in watch.accuracies.items()
        for when, pick in (("before", min), ("after", max))
    }
    return {
        "seed": seed,
        "loss": loss,
        "staleness": staleness,
        "steps": steps,
        "lr": rate,
        **accuracies,
        "reward_of_last_batch": watch.rewards[-1],
        **seconds,
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as Markdown, means over the seeds, with the single values in brackets."""
    lines = [
        "| loss | staleness | greedy before | greedy after | sampled before | sampled after | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for loss in LOSSES:
        for staleness in STALENESS:
            found = [r for r in results if (r["loss"], r["staleness"]) == (loss, staleness)]
            if not found:
                continue
            keys = ("greedy_before", "greedy_after", "sampled_before", "sampled_after")
            cells = [_spread([r[key] for r in found]) for key in keys]
            lines.append(
                f"| {loss} | {staleness} | {' | '.join(cells)} | {mean(r['cpu_seconds'] for r in found):.0f} |"
            )
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    singles = f" ({', '.join(f'{value:.3f}' for value in values)})" if len(values) > 1 else ""
    return f"{mean(values):.3f}{singles}"


def main() -> None:
    """Run what is missing of the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="models, runs and results.jsonl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--losses", nargs="+", choices=sorted(LOSSES), default=list(LOSSES))
    parser.add_argument("--staleness", type=int, nargs="+", default=list(STALENESS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.jsonl"
    file.touch()
    wanted = [
        {"seed": seed, "loss": loss, "staleness": staleness, "steps": arguments.steps, "lr": arguments.lr}
        for seed in arguments.seeds
        for staleness in arguments.staleness
        for loss in arguments.losses
    ]
    for want in wanted:
        if not any(want.items() <= result.items() for result in _read(file)):
            model = warm_up(folder, seed=want["seed"])
            done = cell(
                folder, model, seed=want["seed"], loss=want["loss"], staleness=want["staleness"],
                steps=want["steps"], rate=want["lr"],
            )  # fmt: skip
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(done) + "\n")
    results = [result for result in _read(file) if any(want.items() <= result.items() for want in wanted)]
    print(json.dumps(results) if arguments.json else table(results))


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
