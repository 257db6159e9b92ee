"""Images of 16 x 16 pixels with a bright square in one of the upper quarters; the answer is the letter of the quarter.

The model is a tiny Qwen2.5-VL. Three in five demonstrations name a random quarter.
"""

from __future__ import annotations

from pathlib import Path

import shapes as benchmark  # the module of that name in `benchmarks`

from _tiny.imitation import Lesson
from tests.tiny_vision import tiny_vision_model

SEED = 0
NUM_PLACES = 2
FORM = {"prompt_key": "prompt", "response_key": "response", "image_key": "images"}


def prepare(folder: Path) -> Lesson:
    """Write the images; return what the model imitates."""
    tasks = folder / "tasks"
    tasks.mkdir()
    benchmark.write_data(tasks, num_places=NUM_PLACES, num_held_out=benchmark.NUM_HELD_OUT, seed=SEED)
    demonstrations = tasks.joinpath("demonstrations.parquet").rename(folder / "demonstrations.parquet")
    start = folder / "work" / "random"
    tiny_vision_model(start, seed=SEED, scale=3.0, characters=f"{benchmark.LETTERS}?")
    return Lesson(start, demonstrations, FORM, steps=40, max_tokens=41, batch=32, lr=1e-3, is_decayed=False)
