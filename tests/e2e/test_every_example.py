"""Everything under `examples/` runs exactly as it is written: environment variables name model and data, nothing more.

A folder with a `run.sh` is run by it. Every configuration that no script runs is run by itself, on a cluster that has
the GPUs it asks for, in a folder that `trinity quickstart --prepare-only` has filled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from tests import prepared
from tests.e2e.ray_run import own_cluster
from tests.e2e.short_run import ROOT
from tests.judge import SCORES, write_judge
from tests.prepared_command import program
from trinity.quickstart.dataset import train_rows, write_jsonl
from trinity.quickstart.folder import prepare
from trinity.quickstart.model import write_model
from trinity.service.data_juicer.process import PYTHON_ENV_VAR

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "examples"
NOT_RUN = {".md", ".png", ".ipynb"}  # pages, pictures, and the notebook, which tests/program executes
OURS = ("TRINITY_", "RAY_ADDRESS")
SCRIPTS = sorted(EXAMPLES.rglob("*.sh"))
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())


def written(path: Path) -> dict[str, Any]:
    tree = yaml.safe_load(path.read_text())
    return tree if isinstance(tree, dict) else {}


def is_configuration(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml") and ("mode" in written(path) or "stages" in written(path))


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
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and path.suffix not in NOT_RUN]
    configurations = [path for path in files if is_configuration(path)]
    assert len(configurations) >= 5 and SCRIPTS
    texts = "".join(path.read_text() for path in configurations)
    others = [path for path in files if path not in configurations and path not in SCRIPTS]
    assert [path for path in others if str(path.relative_to(ROOT)) not in texts] == []
    assert {path.parent for path in files} == set(FOLDERS), "one folder an example"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
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


SINGLE = [
    path for path in sorted(EXAMPLES.rglob("*.y*ml")) if is_configuration(path) and path not in by_script(path.parent)
]


@pytest.mark.parametrize("path", SINGLE, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_configuration_runs(path: Path, tmp_path: Path) -> None:
    tree = written(path)
    needs_model = "${oc.env:TRINITY_MODEL_PATH" in path.read_text()
    cwd = ROOT if needs_model else tmp_path / "prepared"
    if not needs_model:
        prepare(cwd, seed=1)
        shrink(cwd / "model")
    cluster = tree.get("cluster", {})
    gpus = cluster.get("node_num", 1) * cluster.get("gpu_per_node", 0)
    if gpus:
        pytest.importorskip("ray")
    with own_cluster(num_gpus=gpus) if gpus else nullcontext() as joined:
        address = {"RAY_ADDRESS": joined.address} if joined else {}
        env = environment(tmp_path, num_rows=96, **address)
        status, output = prepared.finish(["run", "--config", str(path)], cwd=cwd, inherited=env, timeout_s=600)
    assert status == 0, output[-4000:]
    job = tmp_path / "out" / tree["project"] / tree["name"]
    steps = steps_of(job)
    expected = tree.get("trainer", {}).get("total_steps") or -(-96 // tree["buffer"]["batch_size"])
    assert steps["trainer"] == expected
    assert (job / f"global_step_{expected}").is_dir()
    if path.parent.name == "grpo_gsm8k_experience_pipeline":
        check_scores_are_rewards(job)


def check_scores_are_rewards(job: Path) -> None:
    """What the judge says of an answer is added to its reward."""
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    scores = [v for line in lines for k, v in line.items() if k.endswith("data_juicer/llm_quality_score/mean")]
    changes = [v for line in lines for k, v in line.items() if k.endswith("mapper/reward_diff/mean")]
    assert len(scores) == 2 and scores == pytest.approx(changes)
    assert all(min(SCORES) < score < max(SCORES) for score in scores)


def test_the_short_ones_stay_short() -> None:
    for name in ("gsm8k.yaml", "train_gsm8k.yaml"):
        assert len((EXAMPLES / "grpo_gsm8k" / name).read_text().splitlines()) <= 45
