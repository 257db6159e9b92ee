"""A tiny vision-language model learns by GRPO where a square is in a generated image.

    python benchmarks/shapes.py                 # four places, three seeds
    python benchmarks/shapes.py --seeds 1 --steps 40

An image has 16 x 16 pixels, four tokens, a dark ground of random colour and a bright square of random colour, size and
place in one of its quarters; the answer is the letter of the quarter. The model is a Qwen2.5-VL of 0.12 M random
parameters. It first imitates demonstrations of which three in five name a random quarter, so that it answers in
letters and hardly looks, and then learns by GRPO from rewards. Measured is the share of right greedy answers to images
that neither stage has.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.tiny_vision import tiny_vision_model  # noqa: E402  (the repository's root is on the path now)

LETTERS = "abcd"
SIDE, CELL = 16, 8
IMITATED, STEPS = 60, 100
"""Steps of imitation and of reinforcement."""
NUM_TASKS, NUM_HELD_OUT = 2048, 256
RANDOM_FRAC = 0.6
"""Share of the demonstrations that name a random quarter."""


def drawn(place: int, generator: random.Random) -> bytes:
    """Return an image with a square of 4 to 6 pixels somewhere in one of its quarters, as PNG."""
    image = Image.new("RGB", (SIDE, SIDE), _colour(generator, 0, 64))
    size = generator.randrange(4, 7)
    left = CELL * (place % 2) + generator.randrange(CELL - size + 1)
    top = CELL * (place // 2) + generator.randrange(CELL - size + 1)
    image.paste(_colour(generator, 128, 256), (left, top, left + size, top + size))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _colour(generator: random.Random, low: int, high: int) -> tuple[int, int, int]:
    red, green, blue = (generator.randrange(low, high) for _ in range(3))
    return red, green, blue


def rows(count: int, *, generator: random.Random, num_places: int, random_frac: float = 0.0) -> list[dict[str, Any]]:
    """Return rows as of geometry3k: a text with `<image>`, its answer, and the images as structs.

    A share `random_frac` of the answers are random ones.
    """
    made = []
    for _ in range(count):
        place = generator.randrange(num_places)
        image = {"bytes": drawn(place, generator), "path": None}
        said = generator.randrange(num_places) if generator.random() < random_frac else place
        made.append({"prompt": "<image>?", "response": LETTERS[said], "images": [image]})
    return made


def write_data(folder: Path, *, num_places: int, num_held_out: int, seed: int) -> None:
    """Write demonstrations, tasks and held-out tasks; no two of them have one image."""
    given: dict[str, Any] = {"generator": random.Random(seed), "num_places": num_places}
    parts = {
        "demonstrations": rows(NUM_TASKS, random_frac=RANDOM_FRAC, **given),
        "train": rows(NUM_TASKS, **given),
        "test": rows(num_held_out, **given),
    }
    seen: set[bytes] = set()
    for name, made in parts.items():
        images = [row["images"][0]["bytes"] for row in made]
        assert not seen & set(images), "colours, sizes and places make every image another"
        seen |= set(images)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made), folder / f"{name}.parquet")


def prepare(
    folder: Path,
    *,
    num_places: int = len(LETTERS),
    num_held_out: int = NUM_HELD_OUT,
    steps: int = STEPS,
    imitated: int = IMITATED,
    seed: int = 0,
) -> Path:
    """Write data, model and configuration of a run; return the configuration's file.

    Args:
        folder: where everything is written.
        num_places: quarters in which squares are, from 2 to 4.
        num_held_out: images of the evaluation.
        steps: training steps of reinforcement.
        imitated: training steps of imitation.
        seed: of model, data and run.
    """
    write_data(folder, num_places=num_places, num_held_out=num_held_out, seed=seed)
    tiny_vision_model(folder / "model", seed=seed, scale=3.0, characters=f"{LETTERS}?")
    values: dict[str, Any] = {
        "project": "shapes",
        "name": f"seed{seed}",
        "seed": seed,
        "checkpoint_root_dir": str(folder / "out"),
        "deterministic": True,
        "model": {"model_path": str(folder / "model"), "max_prompt_tokens": 40, "max_response_tokens": 1},
        "trainer": {
            "save_interval": 0,
            "trainer_config": {"actor_rollout_ref": {"actor": {"fsdp_config": {"dtype": "float32"}}}},
        },
        "stages": [_imitation(folder, imitated), _reinforcement(folder, steps)],
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return file


def _imitation(folder: Path, steps: int) -> dict[str, Any]:
    buffer = {"name": "demonstrations", "storage_type": "file", **_table(folder, "demonstrations")}
    return {
        "stage_name": "imitation",
        "mode": "train",
        "algorithm": {"algorithm_type": "sft", "optimizer": {"lr": 1e-3, "lr_warmup_steps": 10}},
        "buffer": {"train_batch_size": 32, "trainer_input": {"experience_buffer": buffer}},
        "trainer": {"total_steps": steps, "save_hf_checkpoint": "last"},
    }


def _reinforcement(folder: Path, steps: int) -> dict[str, Any]:
    held_out = {"name": "test", **_table(folder, "test"), "rollout_args": {"temperature": 0.0}}
    return {
        "stage_name": "reinforcement",
        "mode": "both",
        "algorithm": {
            "algorithm_type": "grpo",
            "repeat_times": 8,
            "kl_loss_fn": "none",
            "optimizer": {"lr": 1e-3},
        },
        "buffer": {
            "batch_size": 16,
            "total_steps": steps,
            "explorer_input": {
                "taskset": {"name": "train", **_table(folder, "train")},
                "eval_tasksets": [held_out],
                "default_workflow_type": "simple_mm_workflow",
                "default_reward_fn_type": "accuracy_reward",
            },
        },
        "explorer": {
            "runner_per_model": 64,
            "rollout_model": {"engine_type": "torch", "enable_multimodal": True},
            "eval_on_startup": True,
            "eval_interval": steps,
        },
    }


def _table(folder: Path, name: str) -> dict[str, Any]:
    columns = {"prompt_key": "prompt", "response_key": "response", "image_key": "images"}
    return {"path": str(folder / f"{name}.parquet"), "format": columns}


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the metrics of reinforcement."""
    (file,) = folder.glob("out/**/reinforcement/metrics.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def values_of(records: list[dict[str, Any]], name: str) -> list[float]:
    """Return the values of a metric in the order of the steps."""
    found = [record.get("metrics", record) for record in records]
    return [float(each[name]) for each in found if name in each]


def accuracies(records: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the held-out accuracy of greedy answers before and after reinforcement, in [0, 1]."""
    found = values_of(records, "eval/test/accuracy/mean@1")
    return found[0], found[-1]


def main() -> None:
    """Run the seeds one after another and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    print("| seed | held-out accuracy before GRPO | after | largest difference of log-probabilities | CPU s |")
    print("|---|---|---|---|---|")
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file = prepare(folder, steps=given.steps, seed=seed)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "trinity", "run", "--config", str(file)]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found = metrics(folder)
        first, last = accuracies(found)
        difference = max(values_of(found, "training/rollout_logprobs_diff_max"))
        print(f"| {seed} | {first:.2f} | {last:.2f} | {difference:.1e} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
