"""The learning benchmark: every algorithm has a run whose configuration is whole, and what counts as learning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from trinity.algorithm import ALGORITHM_TYPE
from trinity.launch.run import RunOptions, plan_run
from trinity.quickstart.folder import prepare

Scripts = Callable[[str], ModuleType]


def test_every_algorithm_has_a_run_that_can_be_planned(script: Scripts, tmp_path: Path) -> None:
    prepare(tmp_path, seed=1)
    runs, model = script("algorithm_runs"), tmp_path / "model"
    runs.write_data(tmp_path / "data", seed=1)
    trees = {name: runs.make_config(name, tmp_path, seed=1, model=model, teacher=model) for name in runs.RECIPES}
    assert trees.keys() == ALGORITHM_TYPE.contents.keys()
    order = runs.order(["jsd", "dpo", "grpo"], known=lambda name: False)
    assert order == ["grpo", "jsd", "dpo"], "a teacher is trained before its pupil"
    for name, tree in trees.items():
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
def test_what_counts_as_learning(script: Scripts, result: dict[str, Any], missed: list[str]) -> None:
    assert script("algorithms").verdict(result) == missed
