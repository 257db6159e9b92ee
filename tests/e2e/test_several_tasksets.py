"""Several tasksets in whole runs: a killed one continues to the same end, and each is previewed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tiny_run import TinyRun

pytestmark = pytest.mark.slow

NOT_REPEATED = ("time", "perf")


def made(folder: Path) -> TinyRun:
    """Return a run of 4 explore steps, an epoch of 8 tasks of two tasksets, one of two files and by difficulty."""
    folder.mkdir()
    run = TinyRun(folder)
    rows = [{"question": f"{n}+{n}=", "answer": str(2 * n), "weak": n / 10, "strong": 0.9} for n in range(5)]
    run.write_rows([*rows[:3], {"question": None, "answer": "1"}], "a.jsonl")
    run.write_rows(rows[3:], "b.jsonl")
    run.write_rows([{"prompt": f"{n}*{n}=", "response": str(n * n)} for n in range(3)], "products.jsonl")
    run.change(deterministic=True, buffer__total_steps=None, buffer__total_epochs=1)
    del run.tree["buffer"]["explorer_input"]["taskset"]
    return run.change(
        buffer__max_bad_row_ratio=0.2,
        buffer__explorer_input__tasksets=[
            {
                "name": "sums",
                "path": ["a.jsonl", "b.jsonl"],
                "format": {"prompt_key": "question", "response_key": "answer"},
                "data_selector": {"selector_type": "difficulty_based", "feature_keys": ["weak", "strong"]},
            },
            {"name": "products", "path": "products.jsonl", "rollout_args": {"max_tokens": 4}},
        ],
        data_processor__experience_pipeline__operators=[{"name": "pass_rate_calculator"}],
    )


def told(run: TinyRun) -> list[dict[str, Any]]:
    """Return the explorer's lines without times and speeds, the last of each step."""
    found = {}
    for line in run.lines("explorer"):
        own = {k: v for k, v in line.items() if not any(part in NOT_REPEATED for part in k.split("/")) and k != "seq"}
        if any(key.startswith("rollout/") for key in own):
            found[line["step"]] = own
    return [found[step] for step in sorted(found)]


def test_a_killed_run_of_several_tasksets_ends_as_the_whole_one(tmp_path: Path) -> None:
    whole, cut = made(tmp_path / "whole"), made(tmp_path / "cut")
    ended = whole.finish()
    assert ended.status == 0, ended.output
    killed = cut.finish(failpoints="explore.after_rollout=kill@3")
    assert killed.status != 0, killed.output
    again = cut.finish()
    assert again.status == 0, again.output
    lines = told(whole)
    assert told(cut) == lines and len(lines) == 4
    counts = [sum(line[f"rollout/{name}/finished_task_count"] for line in lines) for name in ("sums", "products")]
    assert counts == [5, 3]
    bad = json.loads((whole.job / "buffer" / "quarantine" / "sums.jsonl").read_text())
    assert (Path(bad["file"]).name, bad["line"], bad["key"]) == ("a.jsonl", 4, "question")


def test_every_taskset_is_previewed(tmp_path: Path) -> None:
    done = made(tmp_path / "run").finish("--json", words=("data", "preview", "--config", "run.yaml"))
    assert done.status == 0, done.output
    found = json.loads(done.output[done.output.index("[\n") :])
    assert [(each["name"], each["num_rows"], each["is_eval"]) for each in found] == [
        ("sums", 5, False),
        ("products", 3, False),
    ]
    assert "a.jsonl:4" in found[0]["bad_rows"][0] and "1*1=" in "".join(found[1]["prompts"])
