"""The summary of a run, from metrics as a run writes them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from trinity.monitor import Monitor
from trinity.quickstart.summary import (
    StageRun,
    keep_known_times,
    next_steps,
    summarize,
    write_curve,
    write_summary,
)
from trinity.summary.curves import read_curves
from trinity.summary.facts import latest_hf_model

ACCURACY = "eval/addition_test/accuracy/mean@1"


def monitor(job_dir: Path, actor: str) -> Monitor:
    return Monitor(job_dir, project="p", name="n", actor=actor, monitor_type=None)


@pytest.fixture
def stages(tmp_path: Path) -> list[StageRun]:
    """Two stages that have run: 100 steps of imitation, 2 explorations with two training steps each."""
    warm_up, rft = tmp_path / "n" / "sft_warmup", tmp_path / "n" / "rft"
    trainer = monitor(warm_up, "trainer")
    for step in range(1, 101):
        trainer.log({"actor/sft_loss": 3.0 / step, "perf/total_num_tokens": 1000}, step)
    explorer, trainer = monitor(rft, "explorer"), monitor(rft, "trainer")
    explorer.log({ACCURACY: 0.3}, 0)
    for step in (1, 2):
        explorer.log({"rollout/accuracy/mean": 0.4 + 0.1 * step}, step)
        for part in (1, 2):
            trainer.log({"actor/final_loss": 0.01, "perf/total_num_tokens": 500}, 2 * (step - 1) + part)
    explorer.log({ACCURACY: 0.99}, 2)
    for step in (9, 100):
        model = warm_up / f"global_step_{step}" / "actor" / "huggingface"
        model.mkdir(parents=True)
        (model / "model.safetensors").touch()
        (model / "config.json").write_text("{}")
    return [StageRun("sft_warmup", warm_up, 30.0), StageRun("rft", rft, 10.0)]


def test_the_numbers_of_a_run(stages: list[StageRun]) -> None:
    summary = summarize(stages, seed=42)
    assert (summary.accuracy_before, summary.accuracy_after, summary.seed) == (0.3, 0.99, 42)
    assert summary.run_seconds == 40.0
    # 100 steps of 1000 tokens and 4 of 500, in 40 seconds.
    assert summary.tokens_per_second == 2550.0
    warm_up, rft = summary.stages
    assert (warm_up.accuracy_before, warm_up.accuracy_after, warm_up.num_steps) == (None, 0.3, 100)
    assert (warm_up.loss_first, warm_up.loss_last) == (3.0, 0.03)
    assert (rft.accuracy_before, rft.accuracy_after, rft.num_steps) == (0.3, 0.99, 4)


def test_the_newest_model_counts_by_number_and_not_by_name(stages: list[StageRun]) -> None:
    assert latest_hf_model(stages[0].job_dir) == stages[0].job_dir / "global_step_100" / "actor" / "huggingface"
    assert latest_hf_model(stages[1].job_dir) is None


def test_the_summary_file_has_the_documented_keys(stages: list[StageRun], tmp_path: Path) -> None:
    path = write_summary(summarize(stages, seed=42), tmp_path)
    written = json.loads(path.read_text())
    assert path.name == "summary.json"
    keys = {"accuracy_before", "accuracy_after", "run_seconds", "tokens_per_second", "seed", "stages"}
    assert keys == set(written)
    assert written["stages"][1]["accuracy_after"] == 0.99


def test_the_curve_is_a_picture(stages: list[StageRun], tmp_path: Path) -> None:
    path = write_curve(summarize(stages, seed=42), tmp_path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    # The header holds the width: two panels of 600 pixels.
    assert int.from_bytes(content[16:20], "big") == 1200


def test_curves_are_in_the_order_of_steps(stages: list[StageRun]) -> None:
    curves = read_curves(stages[1].job_dir)
    assert curves.accuracy == [(0, 0.3), (2, 0.99)]
    assert [step for step, _ in curves.reward] == [1, 2]


def test_a_run_without_metrics_has_no_numbers_and_still_a_curve(tmp_path: Path) -> None:
    summary = summarize([StageRun("rft", tmp_path / "none", 1.0)], seed=1)
    assert (summary.accuracy_before, summary.accuracy_after, summary.tokens_per_second) == (None, None, None)
    assert write_curve(summary, tmp_path).exists()


def test_a_stage_that_was_complete_keeps_the_time_it_took(stages: list[StageRun], tmp_path: Path) -> None:
    assert keep_known_times(stages, tmp_path, started=time.time()) == stages
    write_summary(summarize(stages, seed=42), tmp_path)
    again = [StageRun(stage.name, stage.job_dir, 0.1) for stage in stages]
    assert keep_known_times(again, tmp_path, started=time.time() + 1) == stages
    assert keep_known_times(again, tmp_path, started=0.0) == again


def test_the_next_steps_are_commands_over_places_that_exist(stages: list[StageRun], tmp_path: Path) -> None:
    text = "\n".join(next_steps(summarize(stages, seed=42), tmp_path / "quickstart.yaml"))
    assert f"tensorboard --logdir {tmp_path / 'n'}" in text
    assert f"run --config {tmp_path / 'quickstart.yaml'}" in text
    assert str(stages[0].job_dir / "global_step_100" / "actor" / "huggingface") in text
