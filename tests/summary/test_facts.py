"""The figures of a job, from metrics as runs write them."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.summary.jobs import ACCURACY, REWARD, made_job, monitor
from trinity.monitor.monitor import METRICS_FILE
from trinity.summary.curves import GrowingCurves, StageCurves, ends, read_curves, thinned
from trinity.summary.facts import (
    OF_EVALUATION,
    OF_TENTHS,
    BestStep,
    Change,
    JobSummary,
    KeptCheckpoint,
    best_step,
    changes,
    kept_checkpoints,
    latest_hf_model,
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_job(tmp_path_factory.mktemp("jobs") / "job")


def test_an_evaluation_counts_by_its_first_and_last_and_a_reward_by_tenths(job: Path) -> None:
    found = {each.metric: each for each in changes(read_curves(job))}
    assert list(found) == [ACCURACY, "eval/held/reward/mean@1", REWARD, "response_length/mean"]
    assert found[ACCURACY] == Change(ACCURACY, 0.2, 0.7, OF_EVALUATION, 0, 20)
    # A tenth of 20 steps is 2 of them: (0.01 + 0.02) / 2 and (0.19 + 0.20) / 2.
    assert found[REWARD] == Change(REWARD, pytest.approx(0.015), pytest.approx(0.195), OF_TENTHS, 1, 20)


def test_a_loss_says_something_only_where_nothing_is_explored(tmp_path: Path) -> None:
    trainer = monitor(tmp_path, "trainer")
    for step in (1, 2, 3):
        trainer.log({"actor/sft_loss": 4.0 - step, "actor/final_loss": 9.0}, step)
    curves = read_curves(tmp_path)
    assert changes(curves) == (Change("actor/sft_loss", 3.0, 1.0, OF_TENTHS, 1, 3),)
    assert best_step(curves, ()) is None


def test_totals_of_a_job(job: Path) -> None:
    curves = read_curves(job)
    assert curves.seconds == {"explore": 10.0, "train": 5.0, "sync": 2.5}
    assert (curves.num_tokens, curves.num_generated, curves.counts) == (1000.0, 2000, {"truncated_responses": 10})
    assert (curves.num_steps, curves.has_fates) == (20, False)


def test_engines_that_start_again_count_from_nothing_and_explorers_count_together(tmp_path: Path) -> None:
    for actor, totals in {"explorer": (10, 30, 5), "explorer_2": (7, 8, 9)}.items():
        log = monitor(tmp_path, actor)
        for step, total in enumerate(totals, start=1):
            log.log({"perf/engine/generated_tokens": total, REWARD: 1.0 if actor == "explorer" else 0.0}, step)
    curves = read_curves(tmp_path)
    assert curves.num_generated == 30 + 5 + 9
    assert curves.reward == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_the_best_step_is_the_first_with_the_highest_score_and_has_the_checkpoint_of_its_weights(job: Path) -> None:
    curves, kept = read_curves(job), kept_checkpoints(job)
    assert [(each.step, each.has_hf_weights) for each in kept] == [(10, False), (20, True)]
    assert best_step(curves, kept) == BestStep(ACCURACY, 0.9, 10, 10, str(job / "global_step_10"))
    assert best_step(curves, kept[1:]) == BestStep(ACCURACY, 0.9, 10, 10, None)
    level = StageCurves(reward=[(1, 0.5), (2, 0.7), (3, 0.7)], reward_name=REWARD)
    assert best_step(level, kept) == BestStep(REWARD, 0.7, 2, None, None)
    known = StageCurves(reward=level.reward, reward_name=REWARD, versions={"rollout/model_version": {2: 1}})
    assert best_step(known, [KeptCheckpoint(1, "one", False)]) == BestStep(REWARD, 0.7, 2, 1, "one")


def test_scores_of_mode_bench_count_where_there_are_no_others() -> None:
    scores = {"bench/b/reward/mean@1": [(0, 0.1), (8, 0.3)], "bench/a/accuracy/mean@4": [(0, 0.2), (8, 0.1)]}
    assert StageCurves(evaluations=scores).main_evaluation == "bench/a/accuracy/mean@4"
    both = scores | {"eval/c/own/mean@1": [(0, 0.0)]}
    assert StageCurves(evaluations=both).main_evaluation == "eval/c/own/mean@1"


def test_a_long_curve_is_thinned_to_means_and_a_short_one_stays() -> None:
    points = [(step, float(step)) for step in range(100_000)]
    found = thinned(points, 400)
    # Of 250 steps each: the first are 0 to 249, whose mean is 124.5.
    assert len(found) == 400 and found[0] == (125, 124.5) and found[-1] == (99_875, 99_874.5)
    assert thinned(points[:400], 400) == points[:400]
    assert ends(points[:1]) == (0.0, 0.0)


def test_the_file_gives_the_summary_back_and_another_schema_is_refused() -> None:
    change, kept = Change(ACCURACY, 0.1, 0.2, OF_EVALUATION, 0, 3), KeptCheckpoint(3, "/job/global_step_3", True)
    best = BestStep(ACCURACY, 0.2, 3, 3, kept.path)
    summary = JobSummary(1, "/job", None, "done", "", 3, 3, 1.0, (change,), best, (kept,), notes=("n",))
    assert JobSummary.of_text(summary.text()) == summary
    for text in (summary.text().replace('"schema": 1', '"schema": 2'), "[]", "{", '{"schema": 1}'):
        with pytest.raises(ValueError):
            JobSummary.of_text(text)


@pytest.mark.parametrize("name", ["docs/running.md", "docs/running.zh.md"])
def test_the_pages_name_every_key_of_the_file(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    table = text.partition("\n### `summary.json`\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE) == [each.name for each in fields(JobSummary)]


def test_the_newest_model_is_one_that_has_weights(tmp_path: Path) -> None:
    assert latest_hf_model(tmp_path) is None
    for step, names in ((9, ["config.json", "model.safetensors"]), (10, ["config.json"])):
        folder = tmp_path / f"global_step_{step}" / "actor" / "huggingface"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    assert latest_hf_model(tmp_path) == tmp_path / "global_step_9" / "actor" / "huggingface"


def test_curves_of_a_job_that_goes_on_are_those_of_its_file_whatever_becomes_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    growing, file = GrowingCurves(tmp_path), tmp_path / METRICS_FILE
    assert growing.read() == StageCurves()
    explorer, trainer = monitor(tmp_path, "explorer"), monitor(tmp_path, "trainer")
    for step in range(1, 8):
        explorer.log({REWARD: step / 10, "time/explore_step": 0.5, "fate/issued": step}, step)
        trainer.log({"actor/final_loss": 1.0, "perf/total_num_tokens": 50.0}, step)
        assert growing.read() == read_curves(tmp_path) and growing.read() is growing.read()
    assert growing.read().num_tokens == 350.0 and growing.read().has_fates
    explorer.truncate({"lines": 3})  # back to a checkpoint: the file is another one
    assert growing.read() == read_curves(tmp_path) and len(growing.read().reward) == 3
    whole, half = file.read_bytes(), b'{"actor": "explorer", "step": 4, "rollout/rew'
    file.write_bytes(whole + half)
    assert growing.read() == read_curves(tmp_path), "half a line is not there yet"
    file.write_bytes(whole + half + b'ard/mean": 9.0}\nbroken\n')
    assert growing.read() == read_curves(tmp_path) and growing.read().reward[-1] == (4, 9.0)
    assert "1 damaged lines" in caplog.text
    file.write_bytes(whole[: len(whole) // 2].rpartition(b"\n")[0] + b"\n" + whole)  # in place, and as long
    assert growing.read() == read_curves(tmp_path)
    file.unlink()
    assert growing.read() == StageCurves()


def test_a_line_is_read_once(tmp_path: Path) -> None:
    growing, file = GrowingCurves(tmp_path), tmp_path / METRICS_FILE
    trainer = monitor(tmp_path, "trainer")
    for step in range(1, 10):
        trainer.log({"actor/final_loss": 1.0}, step)
    growing.read()
    data = file.read_bytes()
    with open(file, "r+b") as changed:  # what lies far behind is not looked at again
        changed.write(data.replace(b'"actor/final_loss": 1.0', b'"actor/final_loss": 8.0', 1))
    trainer.log({"actor/final_loss": 2.0}, 10)
    assert [value for _, value in growing.read().loss] == [1.0] * 9 + [2.0]
    assert read_curves(tmp_path).loss[0] == (1, 8.0)


def test_the_pace_is_the_usual_time_of_a_step(tmp_path: Path) -> None:
    times = [0.0, 2.0, 4.0, 1000.0, 1002.0, 1004.0]  # it stood still once
    lines = [{"actor": "trainer", "seq": n, "step": n + 1, "time": time} for n, time in enumerate(times)]
    lines.append({"actor": "trainer", "seq": 6, "step": 6, "time": 1500.0})  # the same step again: an evaluation
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_curves(tmp_path).pace == {"trainer": 2.0}
