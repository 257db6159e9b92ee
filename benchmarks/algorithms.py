"""Every algorithm on the quickstart's task, from one model that learned by imitation: what each one learns.

Writes `algorithms.json`, `algorithms.md` and `algorithms.png` into the folder of the runs. A run that is complete is
not repeated; an interrupted one continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from algorithm_runs import RECIPES, Tree, make_config, order, write_data

from trinity.monitor import headline
from trinity.monitor.jsonl import read_metrics
from trinity.quickstart.folder import prepare
from trinity.summary.facts import latest_hf_model

Result = dict[str, Any]

LEAST_GAIN = 0.15


def trinity_run(config: Path, *arguments: str) -> float:
    """Run `trinity run` on a YAML file; return its seconds.

    Raises:
        RuntimeError: it did not end with status 0.
    """
    started = time.monotonic()
    command = [sys.executable, "-m", "trinity", "run", "--config", str(config), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return time.monotonic() - started


def warm_up(folder: Path, *, seed: int) -> Path:
    """Return the model that every run starts from: the quickstart's first stage."""
    prepared = prepare(folder, seed=seed)
    tree = yaml.safe_load(prepared.config.read_text())
    tree["stages"] = [stage for stage in tree["stages"] if stage["stage_name"] == "sft_warmup"]
    config = folder / "warm_up.yaml"
    config.write_text(yaml.safe_dump(tree, sort_keys=False))
    job = folder / "checkpoints" / "quickstart" / "addition" / "sft_warmup"
    if latest_hf_model(job) is None or not (folder / "data" / "pairs.jsonl").exists():
        trinity_run(config)
        write_data(folder / "data", seed=seed)
    model = latest_hf_model(job)
    assert model is not None, "the warm-up ends with a checkpoint"
    return model


def run_one(name: str, folder: Path, *, seed: int, model: Path) -> Result:
    """Run an algorithm, or take its complete run; return what it achieved."""
    recipe = RECIPES[name]
    teacher = None if recipe.after is None else latest_hf_model(_job(folder, recipe.after))
    tree = make_config(name, folder, seed=seed, model=model, teacher=teacher)
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(tree, sort_keys=False))
    seconds = trinity_run(config)
    trained = latest_hf_model(_job(folder, name))
    assert trained is not None, "the run ends with a checkpoint"
    result: Result = {"algorithm": name, "kind": recipe.kind, "seconds": round(seconds, 1)}
    result |= _curves(read_metrics(_job(folder, name) / "metrics.jsonl"), tree)
    if recipe.kind == "teacher":
        from measures import divergence

        result |= {
            "kl_before": divergence(model, teacher, folder / "data" / "test.jsonl"),
            "kl_after": divergence(trained, teacher, folder / "data" / "test.jsonl"),
        }
    if recipe.kind in ("preference", "dataset"):
        from measures import greedy_accuracy, preferences

        for when, path in (("before", model), ("after", trained)):
            result[f"accuracy_{when}"] = greedy_accuracy(folder, path, seed=seed)
            if recipe.kind == "preference":
                values = preferences(path, model, folder / "data" / "held_out_pairs.jsonl")
                result |= {f"{key}_{when}": value for key, value in values.items()}
    return result


def _job(folder: Path, name: str) -> Path:
    return folder / "checkpoints" / "algorithms" / name


def _curves(records: list[dict[str, Any]], tree: Tree) -> Result:
    accuracy = [(record["step"], value) for record in records if (value := headline.accuracy(record)) is not None]
    losses = [record["actor/sft_loss"] for record in records if "actor/sft_loss" in record]
    result: Result = {"steps": max(record["step"] for record in records)}
    if accuracy:
        result |= {"curve": accuracy, "accuracy_before": accuracy[0][1], "accuracy_after": accuracy[-1][1]}
    if losses and tree["mode"] == "train":
        tenth = max(1, len(losses) // 10)
        result |= {"loss_before": sum(losses[:tenth]) / tenth, "loss_after": sum(losses[-tenth:]) / tenth}
    return result


def verdict(result: Result) -> list[str]:
    """Return what an algorithm missed; nothing if it learned."""
    gain = result.get("accuracy_after", 0.0) - result.get("accuracy_before", 0.0)
    missed = []
    if result["kind"] in ("online", "teacher") and gain < LEAST_GAIN:
        missed.append(f"accuracy rose by {gain:.2f}, less than {LEAST_GAIN}")
    if result["kind"] == "teacher" and result["kl_after"] >= result["kl_before"]:
        missed.append("it did not move towards its teacher")
    if result["kind"] == "preference":
        if result["preference_accuracy_after"] < 0.9:
            missed.append("preference accuracy below 0.9")
        if result["chosen_logprob_after"] < result["chosen_logprob_before"]:
            missed.append("the chosen answers became less likely")
        if gain <= 0:
            missed.append("greedy accuracy did not rise")
    if result["kind"] == "dataset" and result["loss_after"] >= result["loss_before"]:
        missed.append("the loss did not fall")
    return missed


def table(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| algorithm | accuracy before | after | other figures | s |", "|---|---|---|---|---|"]
    for result in results:
        others = []
        if "kl_before" in result:
            others.append(f"KL to the teacher {result['kl_before']:.3f} -> {result['kl_after']:.3f}")
        if "chosen_logprob_before" in result:
            others.append(f"preference accuracy {result['preference_accuracy_after']:.2f}")
            others.append(f"chosen {result['chosen_logprob_before']:.2f} -> {result['chosen_logprob_after']:.2f} nats")
        if "loss_before" in result:
            others.append(f"loss {result['loss_before']:.3f} -> {result['loss_after']:.3f}")
        others += [f"**{missed}**" for missed in verdict(result)]
        accuracy = [f"{result[f'accuracy_{when}']:.3f}" for when in ("before", "after")]
        cells = (result["algorithm"], *accuracy, ", ".join(others), f"{result['seconds']:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(results: list[Result], path: Path) -> None:
    """Draw the held-out accuracy over the explorations, one small axis an algorithm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = [result for result in results if "curve" in result]
    columns = 6
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(2.2 * columns, 1.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axis, result in zip(axes, curves, strict=False):
        axis.plot(*zip(*result["curve"], strict=True), "o-", markersize=3)
        axis.set_title(result["algorithm"], fontsize=8)
        axis.set_ylim(0.0, 1.05)
        axis.grid(alpha=0.3)
    for axis in axes[len(curves) :]:
        axis.set_visible(False)
    figure.supxlabel("explorations (32 problems, 8 rollouts each)", fontsize=8)
    figure.supylabel("held-out accuracy, greedy", fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run what the arguments ask for; return 1 if an algorithm did not learn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("algorithms"), help="folder of the runs")
    parser.add_argument("--only", nargs="*", default=list(RECIPES), metavar="NAME", help="these algorithms")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    folder = arguments.dir.absolute()
    known = folder / "algorithms.json"
    results = {result["algorithm"]: result for result in json.loads(known.read_text())} if known.exists() else {}
    model = warm_up(folder, seed=arguments.seed)
    for name in order(arguments.only, known=lambda name: name in results):
        if name not in results:
            results[name] = run_one(name, folder, seed=arguments.seed, model=model)
            print(table([results[name]]).splitlines()[-1], flush=True)
            known.write_text(json.dumps(list(results.values()), indent=1))
    ordered = [results[name] for name in RECIPES if name in results]
    (folder / "algorithms.md").write_text(table(ordered))
    draw(ordered, folder / "algorithms.png")
    print(table(ordered))
    return int(any(verdict(result) for result in ordered))


if __name__ == "__main__":
    sys.exit(main())
