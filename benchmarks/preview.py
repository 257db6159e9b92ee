"""What `trinity data preview` takes on a large file, as a whole process: imports, rows, chat template, tokenizer.

The rows are the word problems of the step benchmark, in the words of a workflow for maths; `--tokens` lengthens them. A
question of GSM8K has about 60 tokens, and its prompt about 150. With `--kind` they are files to train on: conversations
of a question and an answer (`sft`), pairs of answers (`dpo`), or texts (`cpt`).
"""

from __future__ import annotations

import argparse
import itertools
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

KINDS = ("prompts", "sft", "dpo", "cpt")


def row_of(kind: str, row: dict[str, Any], question: str) -> dict[str, Any]:
    """Return a row of a kind of file, whose texts are about as long as the question."""
    if kind == "prompts":
        return row | {"question": question}
    if kind == "cpt":
        return {"text": f"{question} {row['answer']}"}
    messages = [{"role": "user", "content": question}]
    texts = f"{question} {row['answer']}", f"{row['answer']} {question}"
    good, bad = ({"role": "assistant", "content": text} for text in texts)
    return (
        {"messages": messages, "chosen": [good], "rejected": [bad]}
        if kind == "dpo"
        else {"messages": [*messages, good]}
    )


def write(folder: Path, *, rows: int, tokens: int, kind: str) -> Path:
    """Write a tiny model, `rows` rows and a configuration; return its path."""
    from transformers import AutoTokenizer

    work.build(folder / "model", hidden=64)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    made = work.rows(rows, seed=1)
    others = " ".join(row["question"] for row in work.rows(work.NUM_ROWS, seed=2))
    cut = tokenizer.decode(tokenizer(others)["input_ids"][:tokens])
    with (folder / "train.jsonl").open("w") as file:
        for number, row in enumerate(made):
            file.write(json.dumps(row_of(kind, row, f"{number}. {cut} {row['question']}")) + "\n")
    (folder / "run.yaml").write_text(yaml.safe_dump(config_of(folder, kind)))
    return folder / "run.yaml"


def config_of(folder: Path, kind: str) -> dict[str, Any]:
    """Return a configuration that reads the file."""
    common = {"checkpoint_root_dir": str(folder / "out")}
    common["model"] = {"model_path": str(folder / "model"), "max_model_len": 2048}
    if kind != "prompts":
        columns = {"prompt_key": "text"} if kind == "cpt" else {"prompt_type": "messages", "messages_key": "messages"}
        buffer = {"path": str(folder / "train.jsonl"), "format": columns}
        own = {"mode": "train", "algorithm": {"algorithm_type": kind}}
        return common | own | {"buffer": {"train_batch_size": 8, "trainer_input": {"experience_buffer": buffer}}}
    return common | {
        "mode": "explore",
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
    parts = found.get("histograms") or {"prompt": found["histogram"]}
    middle = sum(number * (first + last) / 2 for each in parts.values() for first, last, number in each)
    middle /= sum(number for _, _, number in next(iter(parts.values())))
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rows": found["num_rows"], "tokens": round(middle), "wall_s": wall_s, "cpu_s": cpu_s}


def main() -> None:
    """Make the files, run the command a few times, and print the quickest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, nargs="+", default=[0, 400], help="tokens before each question")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=KINDS)
    arguments = parser.parse_args()
    for kind, tokens in itertools.product(arguments.kind, arguments.tokens):
        with tempfile.TemporaryDirectory(prefix="preview") as folder:
            config = write(Path(folder), rows=arguments.rows, tokens=tokens, kind=kind)
            found = min((preview(config) for _ in range(arguments.repeats)), key=lambda each: each["wall_s"])
        print(json.dumps({"kind": kind} | {name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    main()
