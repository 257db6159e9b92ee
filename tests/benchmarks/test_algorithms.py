"""The learning benchmark: every algorithm has a run whose configuration is whole, and what counts as learning."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trinity.algorithm import ALGORITHM_TYPE
from trinity.launch.run import RunOptions, plan_run
from trinity.quickstart.folder import prepare

ROOT = Path(__file__).resolve().parents[2]
ASK = """\
import json, sys
from pathlib import Path
sys.path.insert(0, "benchmarks")
import algorithm_runs as runs
folder = Path(sys.argv[1])
runs.write_data(folder / "data", seed=1)
model = folder / "model"
trees = {name: runs.make_config(name, folder, seed=1, model=model, teacher=model) for name in runs.RECIPES}
order = runs.order(["jsd", "dpo", "grpo"], known=lambda name: False)
print(json.dumps({"trees": trees, "order": order}))
"""
JUDGE = """\
import json, sys
sys.path.insert(0, "benchmarks")
import algorithms
print(json.dumps([algorithms.verdict(result) for result in json.loads(sys.argv[1])]))
"""


def python(code: str, *arguments: str) -> Any:
    """Return what a script prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_every_algorithm_has_a_run_that_can_be_planned(tmp_path: Path) -> None:
    prepare(tmp_path, seed=1)
    asked = python(ASK, str(tmp_path))
    assert asked["trees"].keys() == ALGORITHM_TYPE.contents.keys()
    assert asked["order"] == ["grpo", "jsd", "dpo"], "a teacher is trained before its pupil"
    for name, tree in asked["trees"].items():
        config = tmp_path / f"{name}.yaml"
        config.write_text(yaml.safe_dump(tree))
        planned = plan_run(config, RunOptions()).stages[0].config
        assert planned.algorithm.algorithm_type == name
        assert planned.model.model_path == str(tmp_path / "model")
    pairs = [json.loads(line) for line in (tmp_path / "data" / "held_out_pairs.jsonl").read_text().splitlines()]
    assert len(pairs) > 200 and all(pair["chosen"] != pair["rejected"] for pair in pairs)
    chosen = next(pair["chosen"] for pair in pairs if pair["question"].endswith("9"))
    assert chosen.split("\n#### ")[1].isdigit()


@pytest.mark.parametrize(
    ("result", "missed"),
    [
        ({"kind": "online", "accuracy_before": 0.3, "accuracy_after": 0.46}, []),
        ({"kind": "online", "accuracy_before": 0.3, "accuracy_after": 0.4}, ["accuracy rose by 0.10, less than 0.15"]),
        (
            {"kind": "teacher", "accuracy_before": 0.3, "accuracy_after": 0.9, "kl_before": 0.1, "kl_after": 0.2},
            ["it did not move towards its teacher"],
        ),
        ({"kind": "dataset", "loss_before": 0.4, "loss_after": 0.4}, ["the loss did not fall"]),
        (
            # A margin that rises on a destroyed policy.
            {
                "kind": "preference", "accuracy_before": 0.3, "accuracy_after": 0.0, "preference_accuracy_after": 1.0,
                "chosen_logprob_before": -1.3, "chosen_logprob_after": -22.0,
            },
            ["the chosen answers became less likely", "greedy accuracy did not rise"],
        ),
    ],
)  # fmt: skip
def test_what_counts_as_learning(result: dict[str, Any], missed: list[str]) -> None:
    assert python(JUDGE, json.dumps([result])) == [missed]
