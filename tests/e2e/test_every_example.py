"""Examples of several parts run by their scripts, and those with Data-Juicer by themselves, as they are written.

Environment variables name model, data and sizes, nothing more. `tests/docs/test_example_folders.py` has all others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from tests import prepared
from tests.examples import EXAMPLES, FOLDERS, ROOT, SINGLE, configuration
from tests.judge import SCORES, write_judge
from tests.prepared_command import program
from trinity.quickstart.dataset import train_rows, write_jsonl
from trinity.quickstart.model import write_model
from trinity.service.data_juicer.process import PYTHON_ENV_VAR

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NOT_RUN = {".md", ".png", ".ipynb"}  # pages, pictures, and the notebook, which tests/program executes
OURS = ("TRINITY_", "RAY_ADDRESS")
SCRIPTS = sorted(EXAMPLES.rglob("*.sh"))
DATA_JUICER = [EXAMPLES / "grpo_gsm8k_experience_pipeline", EXAMPLES / "grpo_gsm8k_task_pipeline"]
OF_MINUTES = {"serve_sums", "grpo_gsm8k_experience_pipeline"}


def timed(paths: list[Path]) -> list[Any]:
    """Return the parameters of a test; what takes minutes is nightly."""
    return [pytest.param(path, marks=pytest.mark.nightly) if OF_MINUTES & {*path.parts} else path for path in paths]


def by_script(folder: Path) -> list[Path]:
    """Return the configurations that a script of the folder runs whenever it is given a model."""
    texts = "".join(path.read_text() for path in SCRIPTS if folder in path.parents)
    return [path for path in folder.rglob("*.yaml") if f"start {path.stem} " in texts]


def shrink(model: Path) -> None:
    """Write over a model one with fewer weights: these runs are about the files, not about what is learned."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model, **sizes, **heads)).save_pretrained(model)


def environment(tmp_path: Path, *, num_rows: int, **values: str) -> dict[str, str]:
    """Return the variables that name a tiny model and its sums; those that were set before are not passed on."""
    model = tmp_path / "model"
    write_model(model, seed=1)
    shrink(model)
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        path = model / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: 2048}))
    write_judge(tmp_path / "judge")
    rows = train_rows(1)
    write_jsonl(tmp_path / "first.jsonl", rows[:num_rows])
    write_jsonl(tmp_path / "second.jsonl", rows[num_rows : num_rows + 48])
    kept = {key: value for key, value in os.environ.items() if not key.startswith(OURS) or key == PYTHON_ENV_VAR}
    ours = {
        "TRINITY_MODEL_PATH": str(model),
        "TRINITY_JUDGE_MODEL_PATH": str(tmp_path / "judge"),
        "TRINITY_TASKSET_PATH": str(tmp_path / "first.jsonl"),
        "TRINITY_NEW_TASKSET_PATH": str(tmp_path / "second.jsonl"),
        "TRINITY_CHECKPOINT_ROOT_DIR": str(tmp_path / "out"),
    }
    return kept | ours | values


def steps_of(job: Path) -> dict[str, int]:
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    return {line["actor"]: line["step"] for line in lines}


def test_every_file_is_run_or_named_by_one_that_is() -> None:
    """So that a new example cannot be missed: another kind of file needs another way to run it here."""
    for folder in FOLDERS:
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in NOT_RUN]
        files = [path for path in files if "__pycache__" not in path.parts]
        run = [configuration(folder)] if folder in SINGLE else [*folder.glob("*.yaml"), *folder.glob("*.sh")]
        texts = "".join(path.read_text() for path in run)
        plugins = [*folder.glob("*.py")] if f"plugin_dirs: [{folder.relative_to(ROOT)}]" in texts else []
        others = [path for path in files if path not in run and path not in plugins]
        assert [path for path in others if path.name not in texts] == [], folder
    assert {path.parent for path in EXAMPLES.glob("*/*.yaml")} == set(FOLDERS), "a README for each"


@pytest.mark.parametrize("script", timed(SCRIPTS), ids=lambda path: path.parent.name)
def test_a_script_runs_with_a_model_and_data_of_ones_own(script: Path, tmp_path: Path) -> None:
    log = tmp_path / "commands"
    wrapper = tmp_path / "trinity"
    with program() as trinity:
        wrapper.write_text(f'#!/bin/sh\necho "$@" >>{log}\nexec {trinity} "$@"\n')
        wrapper.chmod(0o755)
        env = environment(tmp_path, num_rows=144, TRINITY=str(wrapper), PYTHON=sys.executable, STEPS="3")
        env["PYTHONPATH"] = str(ROOT)  # a script of an example may import the package
        command = ["bash", str(script), str(tmp_path / "work")]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    parts = {path.name: path.read_text()[-2000:] for path in tmp_path.rglob("*.out")}
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-4000:], parts)
    commands = log.read_text().splitlines()
    started = {path for path in script.parent.rglob("*.yaml") if any(f"--config {path} " in line for line in commands)}
    assert started == set(by_script(script.parent))
    (job,) = (path.parent for path in (tmp_path / "out").rglob("metrics.jsonl"))
    assert steps_of(job).keys() >= {"trainer", "explorer"} and min(steps_of(job).values()) >= 1


@pytest.mark.parametrize("folder", timed(DATA_JUICER), ids=lambda path: path.name)
def test_an_example_with_data_juicer_runs(folder: Path, tmp_path: Path) -> None:
    env = environment(tmp_path, num_rows=12, STEPS="2", BATCH_SIZE="6")
    words = ["run", "--config", str(configuration(folder).relative_to(ROOT))]
    status, output = prepared.finish(words, cwd=ROOT, inherited=env, timeout_s=600)
    assert status == 0, output[-4000:]
    job = tmp_path / "out" / "examples" / folder.name
    assert steps_of(job)["trainer"] == 2 and (job / "global_step_2").is_dir()
    if folder is DATA_JUICER[0]:
        check_scores_are_rewards(job)


def check_scores_are_rewards(job: Path) -> None:
    """What the judge says of an answer is added to its reward."""
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    scores = [v for line in lines for k, v in line.items() if k.endswith("data_juicer/llm_quality_score/mean")]
    changes = [v for line in lines for k, v in line.items() if k.endswith("mapper/reward_diff/mean")]
    assert len(scores) == 2 and scores == pytest.approx(changes)
    assert all(min(SCORES) < score < max(SCORES) for score in scores)
