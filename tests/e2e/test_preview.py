"""`trinity data preview`: what the model will be sent, before anything runs."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_try import PLUGIN
from tests.e2e.tiny_run import TinyRun
from tests.prepared import DEADLINE_S

pytestmark = pytest.mark.slow


def previewed(run: TinyRun, *extra: str, status: int = 0) -> str:
    done = run.finish(*extra, words=("data", "preview", "--config", "run.yaml"))
    assert done.status == status, done.output
    return done.output


def facts(run: TinyRun) -> list[dict[str, Any]]:
    output = previewed(run, "--json", "-n", "1000")
    found: list[dict[str, Any]] = json.loads(output[output.index("[\n") :])  # behind what the log says
    return found


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    """Six rows, of which one is bad, two are equal, and two are in the evaluation as well."""
    made = TinyRun(tmp_path)
    questions = ["1+1=", "2+2=", "1+1=", "3+3=", "12345+12345="]
    rows: list[dict[str, Any]] = [{"question": question, "answer": "2"} for question in questions]
    made.write_rows([*rows, {"question": None, "answer": "2"}])
    made.write_rows([{"question": question, "answer": "2"} for question in ("2+2=", "3+3=", "4+4=")], "test.jsonl")
    held = {"name": "held_out", "path": str(tmp_path / "test.jsonl")}
    held["format"] = {"prompt_key": "question", "response_key": "answer"}  # type: ignore[assignment]
    made.change(buffer__explorer_input__eval_tasksets=[held], buffer__explorer_input__default_eval_workflow_type=None)
    return made


def test_lengths_bad_rows_duplicates_and_overlaps_are_counted(run: TinyRun) -> None:
    """B95, B100."""
    trained, held = facts(run)
    assert (trained["num_rows"], held["num_rows"], held["is_eval"]) == (5, 3, True)
    (bad,) = trained["bad_rows"]
    assert "train.jsonl:6" in bad and "question" in bad
    assert trained["num_repeated"] == 1 and held["num_repeated"] == 0
    (name,) = held["overlaps"]
    assert held["overlaps"] == {name: 2} and trained["overlaps"] == {}
    assert ["[W4040]" in line for line in trained["findings"] + held["findings"]] == [True, True]
    assert sum(number for _, _, number in trained["histogram"]) == 5
    assert trained["is_rendered"] and len(trained["prompts"]) == 5
    assert not (run.folder / "out").exists(), "nothing is written"


def test_the_prompts_are_those_that_the_run_sends(run: TinyRun) -> None:
    shown = facts(run)[0]["prompts"]
    ended = run.finish()
    assert ended.status == 0, ended.output
    with sqlite3.connect(run.job / "buffer" / "experience.db") as database:
        rows = database.execute("select distinct prompt_text from experience").fetchall()
    assert {row[0] for row in rows} <= set(shown) and len(rows) > 1


def test_tasks_are_shown_without_torch(run: TinyRun) -> None:
    """Its import takes as long as reading and rendering ten thousand rows."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    code = "import sys; from trinity.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "assert 'transformers' in sys.modules and 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, "data", "preview", "--config", "run.yaml"]
    done = subprocess.run(command, cwd=run.folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 usable rows" in done.stdout


def test_a_terminal_gets_a_histogram_and_what_is_too_long(run: TinyRun) -> None:
    run.change(model__max_prompt_tokens=8)
    output = previewed(run, "-n", "1")
    assert "5 usable rows, 1 are left out" in output and "1 prompts have more than 8 tokens" in output
    assert "model.max_prompt_tokens): they are cut, and not trained on" in output
    assert output.count("\nprompt\n") == 2 and "#" * 40 in output


def test_before_a_task_pipeline_has_run_its_input_is_shown(run: TinyRun) -> None:
    operators = [{"name": "text_length_filter", "args": {"min_len": 5}}]
    run.change(data_processor__task_pipeline={"operators": operators, "target_fields": ["question", "answer"]})
    output = previewed(run)
    assert "[W4041] the task pipeline has not made" in output and "train.jsonl" in output
    assert "taskset 'train', trained on: 5 usable rows" in output
    # A folder that a run has made is what is shown.
    tasks = run.job / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "output.jsonl").write_text('{"question": "12345+12345=", "answer": "24690"}\n')
    output = previewed(run)
    assert "W4041" not in output and "taskset 'train', trained on: 1 usable rows" in output


def test_a_workflow_with_prompts_of_its_own_is_said(run: TinyRun) -> None:
    (run.folder / "plugins").mkdir()
    (run.folder / "plugins" / "two_turns.py").write_text(PLUGIN)
    run.change(buffer__explorer_input__default_workflow_type="two_turns")
    output = previewed(run, "--plugin-dir", "plugins")
    assert "the workflow makes its own prompts; the lengths are those of the prompt column" in output
