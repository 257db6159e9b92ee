"""Runs that learn from what another run explored: as a table of an earlier stage, and as a queue while it is filled."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tiny_run import TinyRun
from trinity.buffer.store import ExperienceStore
from trinity.launch.reuse.past_run import PastRun
from trinity.launch.reuse.replay import replayed
from trinity.launch.samples import fates_of

pytestmark = pytest.mark.slow

FIXED = {"sync_interval": 100, "sync_timeout": 60}  # an expert that explores with the weights that it began with


def experts(folder: Path, kind: str) -> dict[str, Any]:
    """Return the experience buffer of the expert, and the auxiliary buffer of the run that imitates it."""
    return {"name": "experts", "storage_type": kind, "path": f"sqlite:///{folder / 'experts.db'}"}


def student(folder: Path, kind: str) -> TinyRun:
    """Return a run of two steps in which half of every batch of 8 is an expert's."""
    return TinyRun(folder).change(
        algorithm={"algorithm_type": "mix", "repeat_times": 2, "optimizer": {"lr": 1.0e-3}},
        buffer__trainer_input={"auxiliary_buffers": {"sft_dataset": experts(folder.parent, kind)}},
        trainer__save_hf_checkpoint="always",
    )


def test_a_stage_imitates_what_the_stage_before_explored(tmp_path: Path) -> None:
    run = student(tmp_path / "run", "sql")
    explore = {
        "stage_name": "expert",
        "mode": "explore",
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 2},
        "buffer": {"total_steps": 2, "trainer_input": {"experience_buffer": experts(tmp_path, "sql")}},
        "synchronizer": FIXED,
    }
    ended = run.change(stages=[explore, {"stage_name": "mixed"}]).finish()
    assert ended.status == 0, ended.output
    assert (run.job / "mixed" / "global_step_2").is_dir()
    lines = [json.loads(line) for line in (run.job / "mixed" / "metrics.jsonl").read_text().splitlines()]
    assert [line["sample/expert_count"] for line in lines if line["actor"] == "trainer"] == [4.0, 4.0]
    assert [str(found) for found in fates_of(run.job / "mixed").values()] == ["8 issued = 8 trained + 0 waiting"]
    assert "rollouts: 8 issued = 0 trained + 8 waiting" in ended.output, "those of the stage that explored"
    with sqlite3.connect(tmp_path / "experts.db") as database:
        rows = database.execute("SELECT state, count(*) FROM experience GROUP BY state").fetchall()
    assert rows == [("ready", 8)], "a table is read, and not written"


def test_a_run_takes_the_queue_that_another_run_fills_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, expert = student(tmp_path / "run", "queue"), TinyRun(tmp_path / "expert")
    expert.change(name="expert", mode="explore", synchronizer=FIXED, buffer__total_steps=3)
    expert.change(buffer__trainer_input={"experience_buffer": experts(tmp_path, "queue")})
    del expert.tree["trainer"]
    process = run.start()
    try:
        explored = expert.finish()
        assert explored.status == 0, explored.output
        output, _ = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 0, output
    lines = run.lines("trainer")
    assert [line["sample/expert_count"] for line in lines] == [4.0, 4.0]
    assert all(line["actor/expert/weight"] > 0 for line in lines)
    with ExperienceStore(f"sqlite:///{tmp_path / 'experts.db'}") as store:
        assert store.counts("experts", "tiny/expert") == {"ready": 4, "claimed": 0, "trained": 8, "dropped": {}}
        token = store.open_consumer("experts", "tiny/run", run="tiny/expert", cut=2)
        used = [uid for step in (1, 2) for uid in store.step_uids(token, step) or ()]
    assert len(set(used)) == 8 and used == sorted(used), "once each, in the order in which they were explored"
    monkeypatch.chdir(run.folder)
    again = replayed(PastRun.of(run.job), 2)
    theirs = [each.info["uid"] for each in again.experiences if each.info.get("dataset") == "experts"]
    assert theirs == used[4:] and len(again.experiences) == 8
    for name in ("actor/grad_norm", "actor/final_loss"):
        assert again.own.metrics[name] == pytest.approx(again.logged[name], rel=1e-4)
