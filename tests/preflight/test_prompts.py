"""What `trinity validate` says of prompts that are too long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_model
from trinity.catalogue import BUILT_IN
from trinity.common.config import examine
from trinity.preflight.prompts import check_prompts

RUN = """\
project: p
name: n
model: {model_path: model, max_model_len: 16, max_prompt_tokens: 10}
buffer:
  batch_size: 2
  explorer_input:
    default_workflow_type: math_workflow
    taskset: {name: train, path: train.jsonl}
    eval_tasksets: [{name: test, path: test.jsonl, format: {messages_key: talk, system_prompt: "1234567"}}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "model")
    (tmp_path / "run.yaml").write_text(RUN)
    _write(tmp_path / "train.jsonl", [{"prompt": "1" * length, "response": "1"} for length in (9, 10, 11, 15, 16, 20)])
    talk = [[{"role": "system", "content": "12345"}, {"role": "user", "content": "1" * n}] for n in (4, 5, 10)]
    _write(tmp_path / "test.jsonl", [{"talk": each} for each in talk])
    return tmp_path


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _found(folder: Path, *overrides: str) -> dict[str, str]:
    plan, problems = examine(folder / "run.yaml", overrides, catalogue=BUILT_IN, cwd=folder)
    assert not [problem.render() for problem in problems if problem.is_error]
    found = list(check_prompts(plan.stages[0].config))
    assert {problem.code for problem in found} <= {"W4014"}
    return {problem.key.split(".")[2]: problem.message for problem in found}


def test_prompts_above_the_limit_are_counted(folder: Path) -> None:
    """B95."""
    found = _found(folder)
    assert found["taskset"].startswith("4 of the first 6 prompts of ") and "more than 10 tokens" in found["taskset"]
    assert "the longest 20 before the chat template: they are cut, and not trained on" in found["taskset"]
    assert found["eval_tasksets[0]"].startswith("2 of the first 3 prompts")  # one character more joins two messages


def test_without_truncation_the_limit_is_the_length_of_the_model(folder: Path) -> None:
    """B95."""
    found = _found(folder, "model.enable_prompt_truncation=false")
    assert found["taskset"].startswith("2 of the first 6") and "more than 15 tokens" in found["taskset"]
    assert found["taskset"].endswith("they are refused by the engine")


def test_a_system_prompt_counts(folder: Path) -> None:
    key = "buffer.explorer_input.taskset.format.system_prompt=1234567890"
    assert _found(folder, key)["taskset"].startswith("6 of the first 6 prompts")


def test_prompts_that_fit_and_trainers_are_silent(folder: Path) -> None:
    assert _found(folder, "model.max_model_len=64", "model.max_prompt_tokens=48") == {}
    assert _found(folder, "mode=train") == {}


def test_counting_loads_no_torch(folder: Path) -> None:
    code = "import sys; from trinity.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    command = [sys.executable, "-c", code, "validate", "--config", "run.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning[W4014]" in done.stdout


@pytest.mark.parametrize(
    "row", [{"prompt": "a\ud800", "response": "1"}, {"prompt": None, "response": "1"}, {"prompt": [3], "response": "1"}]
)
def test_rows_that_are_left_out_are_not_counted(folder: Path, row: dict[str, Any]) -> None:
    """B96: what no tokenizer takes must not end the check of the others."""
    with open(folder / "train.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    assert "4 of the first 6 prompts" in _found(folder)["taskset"]
