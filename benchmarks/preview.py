"""What `trinity data preview` takes on a large file, as a whole process: imports, rows, chat template, tokenizer.

The rows are the word problems of the step benchmark, in the words of a workflow for maths; `--tokens` lengthens them. A
question of GSM8K has about 60 tokens, and its prompt about 150.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import work
import yaml


def write(folder: Path, *, rows: int, tokens: int) -> Path:
    """Write a tiny model, `rows` rows and a configuration; return its path."""
    from transformers import AutoTokenizer

    work.build(folder / "model", hidden=64)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    made = work.rows(rows, seed=1)
    others = " ".join(row["question"] for row in work.rows(work.NUM_ROWS, seed=2))
    cut = tokenizer.decode(tokenizer(others)["input_ids"][:tokens])
    with (folder / "train.jsonl").open("w") as file:
        for number, row in enumerate(made):
            file.write(json.dumps(row | {"question": f"{number}. {cut} {row['question']}"}) + "\n")
    config = {
        "mode": "explore",
        "checkpoint_root_dir": str(folder / "out"),
        "model": {"model_path": str(folder / "model"), "max_model_len": 2048},
        "buffer": {
            "batch_size": 8,
            "total_steps": 1,
            "explorer_input": {
                "taskset": {
                    "name": "train",
                    "path": str(folder / "train.jsonl"),
                    "format": {"prompt_key": "question", "response_key": "answer"},
                },
                "default_workflow_type": "math_workflow",
            },
        },
        "explorer": {"rollout_model": {"engine_type": "torch"}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return folder / "run.yaml"


def preview(config: Path) -> dict[str, Any]:
    """Run the command; return its seconds on the clock and on CPUs, and what it counted.

    Raises:
        RuntimeError: it failed; with its output.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, "-m", "trinity", "data", "preview", "--config", str(config), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    (found,) = json.loads(done.stdout[done.stdout.index("[\n") :])
    middle = sum(number * (first + last) / 2 for first, last, number in found["histogram"]) / found["num_rows"]
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rows": found["num_rows"], "tokens": round(middle), "wall_s": wall_s, "cpu_s": cpu_s}


def main() -> None:
    """Make the files, run the command a few times, and print the quickest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, nargs="+", default=[0, 400], help="tokens before each question")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for tokens in arguments.tokens:
        with tempfile.TemporaryDirectory(prefix="preview") as folder:
            config = write(Path(folder), rows=arguments.rows, tokens=tokens)
            found = min((preview(config) for _ in range(arguments.repeats)), key=lambda each: each["wall_s"])
        print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    main()
