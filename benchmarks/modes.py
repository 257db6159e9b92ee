"""The quickstart's reinforcement stage in every mode of a run: how long it takes to start, to explore and to train.

One command runs every mode, one after another and in turns, and prints a table:
`python benchmarks/modes.py [--modes ...] [--model larger] [--steps N] [--turns N] [--folder D]`. The work is the same
in each: 32 problems x 8 rollouts of 22 tokens an explore step, and two optimizer steps of 128 of them. Modes with vLLM
or Ray need those packages; a mode that fails is reported, and the status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 900.0
ENGINE = "explorer.rollout_model"
VLLM = {f"{ENGINE}.engine_type": "vllm"}
LARGER = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 16}
"""27 M parameters: what an engine computes outweighs what is done around it, as it does with any real model."""
RAY = {"cluster.runtime": "ray", "cluster.ray_address": "local"}
MODES: dict[str, dict[str, Any]] = {
    "1 torch engine": {},
    "2 torch engines": {f"{ENGINE}.engine_num": 2},
    "2 trainer workers": {"trainer.num_workers": 2},
    "1 vLLM engine": VLLM,
    "2 vLLM engines": VLLM | {f"{ENGINE}.engine_num": 2},
    "vLLM, tensor parallel 2": VLLM | {f"{ENGINE}.tensor_parallel_size": 2},
    "Ray, 1 torch engine": RAY,
    "Ray, 2 torch engines": RAY | {f"{ENGINE}.engine_num": 2},
    "Ray, 1 vLLM engine": RAY | VLLM,
}


@dataclass
class Measured:
    """What runs of one mode took, in seconds, and generated tokens a second; one value a run or step."""

    start_s: list[float] = field(default_factory=list)
    explore_s: list[float] = field(default_factory=list)
    rollout_s: list[float] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        """Return the medians."""
        columns = (self.start_s, self.explore_s, self.rollout_s, self.train_s, self.tokens_per_s)
        digits = (1, 3, 3, 3, 0)
        return [f"{median(values):,.{number}f}" for values, number in zip(columns, digits, strict=True)]


def enlarged(model: Path, *, seed: int) -> Path:
    """Write a model of the size of `LARGER`, not trained, with the tokenizer of `model`; return its folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = model.with_name("larger")
    heads = LARGER["num_attention_heads"]
    sizes = LARGER | {"num_key_value_heads": heads, "head_dim": LARGER["hidden_size"] // heads}
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model, **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def write_config(folder: Path, *, size: str, seed: int, steps: int, imitation: int | None) -> Path:
    """Run the quickstart's imitation; write its reinforcement stage alone, over that model; return its file."""
    import yaml
    from staleness import warm_up

    model = warm_up(folder, seed=seed, steps=imitation)
    tree = yaml.safe_load((folder / f"seed_{seed}" / "quickstart.yaml").read_text(encoding="utf-8"))
    stage = tree.pop("stages")[1]
    tree |= {"mode": "both", "checkpoint_root_dir": str(folder / "jobs"), "deterministic": False}
    tree["continue_from_checkpoint"] = False
    tree["model"]["model_path"] = str(model)
    tree["algorithm"], tree["synchronizer"] = stage["algorithm"], stage["synchronizer"]
    tree["buffer"] = stage["buffer"] | {"total_steps": steps}
    tree["buffer"]["explorer_input"] |= {"eval_tasksets": []}
    tree["explorer"] = stage["explorer"] | {"eval_interval": None, "eval_on_startup": False, "runner_per_model": 32}
    tree["trainer"] |= {"save_interval": 0, "save_hf_checkpoint": "never"}
    if size == "larger":  # what is not trained ends anywhere, so each rollout has the tokens of a right answer
        tree["model"] |= {"model_path": str(enlarged(model, seed=seed)), "max_response_tokens": 22}
        tree["explorer"]["rollout_model"]["ignore_eos"] = True
    path = folder / "modes.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return path


def run(config: Path, mode: str, measured: Measured, *, number: int) -> str | None:
    """Run the configuration in a mode; add to `measured`; return what failed, or None."""
    name = f"{mode.replace(' ', '_').replace(',', '')}_{number}"
    settings = MODES[mode] | {"name": name}
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "trinity", "run", "--config", str(config), *overrides]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    begun = time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        return f"{mode}: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    (file,) = (config.parent / "jobs").glob(f"*/{name}/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    explored = [line for line in lines if "time/explore_step" in line]
    trained = [line for line in lines if "time/train_step" in line]
    measured.start_s.append(explored[0]["time"] - explored[0]["time/explore_step"] - begun)
    measured.explore_s += [line["time/explore_step"] for line in explored[1:]]
    measured.rollout_s += [line["time/wait_explore_step"] for line in explored[1:]]
    measured.tokens_per_s += [line["perf/rollout_tokens_per_s"] for line in explored[1:]]
    measured.train_s += [line["time/train_step"] for line in trained[1:]]
    return None


def table(found: dict[str, Measured]) -> str:
    """Return the medians of each mode, and its explore step as a multiple of the first one's."""
    head = ["mode", "start s", "explore step s", "rollouts s", "train step s", "tokens/s", "explore step, ratio"]
    rows = [head, ["---"] * len(head)]
    first = median(next(iter(found.values())).explore_s)
    rows += [[mode, *each.row(), f"{median(each.explore_s) / first:.2f}"] for mode, each in found.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def measure(folder: Path, modes: Sequence[str], *, turns: int, **work: Any) -> int:
    """Run all modes `turns` times, in turns; print the table; return the status."""
    config = write_config(folder, **work)
    found = {mode: Measured() for mode in modes}
    failures = []
    for number in range(turns):
        for mode in modes:
            failure = run(config, mode, found[mode], number=number)
            print(failure or f"{mode}: {' / '.join(found[mode].row())}", file=sys.stderr, flush=True)
            failures += [failure] if failure else []
    print(table({mode: each for mode, each in found.items() if each.explore_s}))
    return int(bool(failures))


def main() -> int:
    """Measure; return the status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--model", choices=("quickstart", "larger"), default="quickstart", help="its size")
    parser.add_argument("--steps", type=int, default=12, help="explore steps a run; the first is not counted")
    parser.add_argument("--turns", type=int, default=1, help="runs of each mode")
    parser.add_argument("--imitation", type=int, help="steps before, for a try; default: the quickstart's")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--folder", type=Path, help="where the runs are; default: a temporary one")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory(prefix="trinity_modes_") as temporary:
        folder = options.folder or Path(temporary)
        work = {"size": options.model, "seed": options.seed, "steps": options.steps, "imitation": options.imitation}
        return measure(folder, options.modes, turns=options.turns, **work)


if __name__ == "__main__":
    sys.exit(main())
