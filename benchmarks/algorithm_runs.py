"""The runs of `algorithms.py`: one configuration an algorithm, all on the quickstart's task and from one model.

What an algorithm does not need to differ in is equal: 20 explorations of 32 problems with 8 rollouts each, two
optimizer steps an exploration, AdamW with a learning rate of 2e-4 that decays linearly to a tenth, and the algorithm's
own defaults for advantage, loss, KL and entropy.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trinity.quickstart import dataset
from trinity.quickstart.template import render

Tree = dict[str, Any]

EXPLORE_STEPS = 20
ROLLOUTS = 8
NUM_EXPERTS = 4096
NUM_PAIRS = 2560


@dataclass(frozen=True)
class Recipe:
    """What an algorithm's run has of its own.

    Attributes:
        kind: `online`, `preference`, `dataset` or `teacher`; decides what is measured.
        algorithm: keys of the algorithm section beside `algorithm_type`.
        settings: dotted keys and values of the other sections.
        after: an algorithm whose result this one needs.
    """

    kind: str = "online"
    algorithm: Tree = field(default_factory=dict)
    settings: Tree = field(default_factory=dict)
    after: str | None = None


_ONLY_RIGHT = {"data_processor.experience_pipeline.operators": [{"name": "reward_filter", "args": {"threshold": 1.0}}]}
_EXPERTS = {
    "buffer.train_batch_size": 256,  # 128 rollouts, as the others, and as many demonstrations
    "buffer.trainer_input.auxiliary_buffers.sft_dataset": {
        "name": "sft_dataset",
        "storage_type": "file",
        "path": "{data}/experts.jsonl",
        "format": {"prompt_type": "plaintext", "prompt_key": "question", "response_key": "answer"},
    },
}
_TEACHER = {
    "explorer.auxiliary_models": [{"model_path": "{teacher}", "dtype": "float32"}],
}
_DATASET = {"buffer.train_batch_size": 64, "trainer.total_steps": 60, "algorithm.optimizer.lr": 5.0e-4}


def _dataset_buffer(file: str, **keys: str) -> Tree:
    return {
        "name": Path(file).stem,
        "storage_type": "file",
        "path": f"{{data}}/{file}",
        "format": {"prompt_type": "plaintext"} | keys,
    }


RECIPES: dict[str, Recipe] = {
    "ppo": Recipe(
        algorithm={"repeat_times": ROLLOUTS},
        settings={"trainer.trainer_config.critic.optim.lr": 1.0e-3, "trainer.trainer_config.critic.ppo_epochs": 2},
    ),
    "grpo": Recipe(),
    "dapo": Recipe(),
    "dr_grpo": Recipe(),
    "grpo_verl": Recipe(),
    "grpo_passk": Recipe(),
    "reinforceplusplus": Recipe(),
    "reinforce_plus_plus_baseline": Recipe(),
    "rloo": Recipe(),
    "remax": Recipe(),
    "opo": Recipe(),
    "gpg": Recipe(),
    "opmd": Recipe(),
    "asymre": Recipe(),
    "topr": Recipe(),
    "sppo": Recipe(),
    "rec": Recipe(),
    "cispo": Recipe(),
    "gspo": Recipe(),
    "sapo": Recipe(),
    "clip_cov": Recipe(),
    "kl_cov": Recipe(),
    "geo_mean": Recipe(),
    "raft": Recipe(settings=_ONLY_RIGHT),
    "mix": Recipe(settings=_EXPERTS),
    "mix_chord": Recipe(settings=_EXPERTS),
    "multi_step_grpo": Recipe(),
    "gigpo": Recipe(),
    "on_policy_distill": Recipe(kind="teacher", settings=_TEACHER, after="grpo"),
    "jsd": Recipe(kind="teacher", settings=_TEACHER, after="grpo"),
    "dpo": Recipe(
        kind="preference",
        settings={
            "buffer.trainer_input.experience_buffer": _dataset_buffer(
                "pairs.jsonl", prompt_key="question", chosen_key="chosen", rejected_key="rejected"
            ),
            "buffer.train_batch_size": 32,  # pairs
            "trainer.total_steps": 80,
            # Ten times as much makes the chosen answers unlikely, too, and the policy useless: see docs/datasets.md.
            "algorithm.optimizer": {"lr": 1.0e-5, "betas": [0.9, 0.95], "weight_decay": 0.0},
        },
    ),
    "sft": Recipe(
        kind="dataset",
        settings=_DATASET
        | {
            "buffer.trainer_input.experience_buffer": _dataset_buffer(
                "experts.jsonl", prompt_key="question", response_key="answer"
            )
        },
    ),
    "cpt": Recipe(
        kind="dataset",
        settings=_DATASET
        | {"buffer.trainer_input.experience_buffer": _dataset_buffer("texts.jsonl", prompt_key="text")},
    ),
}


def write_data(folder: Path, *, seed: int) -> None:
    """Write what the quickstart has no file for: right demonstrations, texts, and pairs of a right and a wrong one."""
    rows = dataset.train_rows(seed + 1)[:NUM_EXPERTS]
    dataset.write_jsonl(folder / "experts.jsonl", rows)
    dataset.write_jsonl(folder / "texts.jsonl", [{"text": f"{row['question']}={row['answer']}"} for row in rows])
    dataset.write_jsonl(folder / "pairs.jsonl", preference_rows(rows)[:NUM_PAIRS])
    dataset.write_jsonl(folder / "held_out_pairs.jsonl", preference_rows(dataset.test_rows()))


def preference_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return pairs of the right solution and the one without carries, where they differ."""
    pairs = []
    for row in rows:
        left, right = (int(number) for number in row["question"].split("+"))
        wrong = dataset.solution(left, right, is_carrying=False)
        if wrong != row["answer"]:
            pairs.append({"question": row["question"], "chosen": row["answer"], "rejected": wrong})
    return pairs


def make_config(name: str, folder: Path, *, seed: int, model: Path, teacher: Path | None = None) -> Tree:
    """Return the configuration of an algorithm's run.

    Args:
        name: algorithm type.
        folder: of the quickstart, and of the runs.
        seed: of the run.
        model: where every run starts from.
        teacher: the model that a distilled one moves to.
    """
    recipe = RECIPES[name]
    tree = _common(folder, seed)
    tree |= {"name": name, "mode": "both" if recipe.kind in ("online", "teacher") else "train"}
    put(tree, "model.model_path", str(model))
    if tree["mode"] == "both":
        section = copy.deepcopy(tree["algorithm"]) | {"repeat_times": ROLLOUTS}
        put(tree, "buffer.total_steps", EXPLORE_STEPS)
    else:
        section = {"optimizer": dict(tree["algorithm"]["optimizer"])}
        for key in ("explorer", "synchronizer"):
            tree.pop(key)
        tree["buffer"] = {}
        put(tree, "trainer.save_interval", 0)
    section.pop("kl_loss_fn", None)
    tree["algorithm"] = section | {"algorithm_type": name} | recipe.algorithm
    places: dict[str, Any] = {"data": folder / "data", "teacher": teacher}
    for key, value in recipe.settings.items():
        put(tree, key, _filled(value, places))
    return tree


def _common(folder: Path, seed: int) -> Tree:
    """Return the quickstart's second stage as a configuration of its own."""
    tree: Tree = yaml.safe_load(render(folder, seed=seed))
    stage = next(stage for stage in tree.pop("stages") if stage.pop("stage_name") == "rft")
    for key, value in stage.items():
        tree[key] = {**tree.get(key, {}), **value} if isinstance(value, dict) else value
    tree["project"] = "algorithms"
    put(tree, "trainer.save_interval", 0)
    return tree


def put(tree: Tree, key: str, value: Any) -> None:
    """Set the value at a dotted key."""
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value


def _filled(value: Any, places: Tree) -> Any:
    text = json.dumps(value)
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", str(place))
    return json.loads(text)


def order(names: list[str], *, known: Callable[[str], bool]) -> list[str]:
    """Return `names` with what they need before them; a result that is `known` need not be made again."""
    result: list[str] = []
    for name in names:
        needed = RECIPES[name].after
        if needed is not None and needed not in result and not known(needed):
            result.append(needed)
        if name not in result:
            result.append(name)
    return result
