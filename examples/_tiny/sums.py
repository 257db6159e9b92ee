"""Sums of two numbers below 100, with columns and carries: the quickstart's task, in the form of GSM8K.

The model has imitated demonstrations of which three in four forget the carry. `tasks` has questions and answers,
`rubrics` the same with criteria, `verl` in the form of veRL, `experts.jsonl` right demonstrations, and `pairs.jsonl` a
right answer and one without carries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from algorithm_runs import write_data

from _tiny.imitation import PLAIN, Lesson
from trinity.quickstart import dataset
from trinity.quickstart.model import write_model

SEED = 42
RUBRIC = [{"description": "the result is right", "weight": 3}, {"description": "every carry is written", "weight": 1}]


def prepare(folder: Path) -> Lesson:
    """Write the task; return what the model imitates."""
    rows = {"train": dataset.train_rows(SEED), "test": dataset.test_rows()}
    for name, made in rows.items():
        dataset.write_jsonl(folder / "tasks" / f"{name}.jsonl", made)
        rated = [row | {"rubric": RUBRIC} for row in made]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rated), _parent(folder / "rubrics" / f"{name}.parquet"))
        verl = pyarrow.Table.from_pylist([_verl_row(row, number, name) for number, row in enumerate(made)])
        pyarrow.parquet.write_table(verl, _parent(folder / "verl" / f"{name}.parquet"))
    write_data(folder, seed=SEED)
    dataset.write_jsonl(folder / "few.jsonl", rows["train"][:160])
    dataset.write_jsonl(folder / "forgetful.jsonl", dataset.sft_rows(SEED))
    write_model(folder / "work" / "random", seed=SEED)
    return Lesson(folder / "work" / "random", folder / "forgetful.jsonl", PLAIN, steps=300, max_tokens=40)


def _verl_row(row: dict[str, str], number: int, split: str) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": row["question"]}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": row["answer"].rpartition("#### ")[2]},
        "extra_info": {"split": split, "index": number},
    }


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
