"""The asynchronous example as it is shipped: three files, one script, a model that has imitated a few sums before."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

from tests.e2e.ray_run import own_cluster
from tests.e2e.short_run import ROOT
from tests.prepared_command import program
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.quickstart.dataset import solution, write_jsonl
from trinity.quickstart.model import write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples" / "async_gsm8k"
SEED_FILES = ROOT / "tests" / "seeds"
EXPLORER_SIZES = ("buffer.batch_size=6", "explorer.rollout_model.engine_num=1", "explorer.runner_per_model=48")
TRAINER_SIZES = ("buffer.train_batch_size=48", "algorithm.optimizer.lr=3e-4")
PAIRS = [(13 + 7 * i, 88 - 5 * i) for i in range(12)]  # all of them carry


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers 12 sums right or without the carries, about as often, and their tasks."""
    made = tmp_path_factory.mktemp("async")
    write_model(made / "model", seed=1)
    rows = [
        {"question": f"{a}+{b}", "answer": solution(a, b, is_carrying=is_carrying)}
        for a, b in PAIRS
        for is_carrying in (True, False)
    ]
    write_jsonl(made / "sft.jsonl", rows)
    right = rows[::2]
    write_jsonl(made / "first.jsonl", right * 12)
    write_jsonl(made / "second.jsonl", right[::-1] * 3)
    overrides = {
        "checkpoint_root_dir": made / "warm",
        "model.model_path": made / "model",
        "buffer.trainer_input.experience_buffer.path": made / "sft.jsonl",
        "buffer.train_batch_size": 24,
        "algorithm.optimizer": {"lr": 4e-3, "lr_scheduler_type": "linear", "lr_warmup_steps": 20, "min_lr_ratio": 0.0},
        "trainer.total_steps": 70,
        "trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.dtype": "float32",
    }
    options = RunOptions(overrides=[f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()])
    run_plan(plan_run(EXAMPLE.parent / "sft_gsm8k" / "sft.yaml", options), options)
    return made


def warm_model(folder: Path) -> Path:
    return folder / "warm" / "examples" / "sft_gsm8k" / "global_step_70" / "actor" / "huggingface"


def run(folder: Path, name: str, *options: str) -> Path:
    """Run the script in a folder of its own; return the job's folder."""
    environment = {
        "TRINITY_MODEL_PATH": str(warm_model(folder)),
        "TRINITY_TASKSET_PATH": str(folder / "first.jsonl"),
        "TRINITY_NEW_TASKSET_PATH": str(folder / "second.jsonl"),
        "EXPLORER_SIZES": " ".join(EXPLORER_SIZES),
        "TRAINER_SIZES": " ".join(TRAINER_SIZES),
    }
    with program() as trinity:
        done = subprocess.run(
            ["bash", str(EXAMPLE / "run.sh"), str(folder / name), *options],
            env=os.environ | environment | {"TRINITY": str(trinity)}, capture_output=True, text=True, timeout=500,
        )  # fmt: skip
    parts = {path.name: path.read_text() for path in sorted((folder / name).glob("*.out"))}
    assert done.returncode == 0, (done.stdout, done.stderr, parts)
    return folder / name / "checkpoints" / "async_gsm8k" / "grpo"


def series(job: Path, actor: str, key: str) -> list[float]:
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if line["actor"] == actor and key in line]


def check(job: Path, database: Path) -> list[float]:
    with sqlite3.connect(database) as store:
        made = store.execute("select producer, count(*), max(explore_step) from experience group by 1").fetchall()
        states = store.execute("select state, use_count, count(*) from experience group by 1, 2").fetchall()
        used = store.execute("select count(*), count(distinct uid) from step_exp").fetchall()
    assert made == [("explorer", 1152, 24), ("explorer_new", 288, 6)]
    assert states == [("trained", 1, 1440)] and used == [(1440, 1440)]
    versions = {name: series(job, name, "rollout/model_version") for name in ("explorer", "explorer_new")}
    assert versions["explorer"][0] == 0 < versions["explorer_new"][0], "the second one begins with the newest weights"
    assert all(seen == sorted(seen) and len(set(seen)) > 1 for seen in versions.values()), versions
    accuracy = series(job, "explorer", "rollout/accuracy/mean")
    # The first two steps are of the initial weights.
    assert mean(accuracy[2:8]) > mean(accuracy[:2]) + 0.15, accuracy
    return accuracy


def test_two_explorers_and_a_trainer_learn_apart(folder: Path):
    accuracy = check(run(folder, "grpo"), folder / "grpo" / "gsm8k.db")
    assert mean(accuracy[-8:]) > mean(accuracy[:2]) + 0.15, accuracy


@pytest.mark.nightly
def test_the_same_files_run_on_one_ray_cluster(folder: Path):
    pytest.importorskip("ray")
    with own_cluster() as cluster:
        options = {"cluster.ray_address": cluster.address, "explorer.runner_isolation": "thread"}
        job = run(folder, "ray", *(word for key, value in options.items() for word in ("--set", f"{key}={value}")))
    check(job, folder / "ray" / "gsm8k.db")
    processes = [(folder / "ray" / f"{name}.out").read_text() for name in ("explorer", "explorer_new", "trainer")]
    for name, text in zip(("explorer", "explorer_new", "trainer"), processes, strict=True):
        assert f"{name} is process" in text


@pytest.mark.nightly
def test_the_example_runs_with_opmd(folder: Path):
    check(run(folder, "opmd", "--set", "algorithm.algorithm_type=opmd"), folder / "opmd" / "gsm8k.db")


def test_the_files_are_the_published_ones(folder: Path):
    for name in ("explorer", "trainer", "explorer_new"):
        text = (EXAMPLE / f"{name}.yaml").read_text()
        ours: dict[str, Any] = yaml.safe_load(text)
        assert (ours.pop("project"), ours.pop("name")) == ("async_gsm8k", "grpo")
        published = yaml.safe_load((SEED_FILES / f"{name}.yaml").read_text())
        assert ours == {key: value for key, value in published.items() if key not in ("project", "name")}
        assert len(text.splitlines()) <= 45
