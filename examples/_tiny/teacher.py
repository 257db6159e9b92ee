"""A teacher for distillation: the model of the sums, but it has imitated right demonstrations only."""

from __future__ import annotations

from pathlib import Path

from _tiny.imitation import PLAIN, Lesson
from trinity.quickstart import dataset
from trinity.quickstart.model import write_model

SEED = 42


def prepare(folder: Path) -> Lesson:
    """Return what the model imitates."""
    demonstrations = folder / "work" / "demonstrations.jsonl"
    dataset.write_jsonl(demonstrations, dataset.train_rows(SEED))
    write_model(folder / "work" / "random", seed=SEED)
    return Lesson(folder / "work" / "random", demonstrations, PLAIN, steps=300, max_tokens=40)
