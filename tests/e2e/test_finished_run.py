"""What a finished run leaves: folders, logs, metrics, models, a database that anyone can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.short_run import ShortRun, comparable_metrics
from trinity.common.checkpoint import CheckpointStore
from trinity.common.models.utils import load_fsdp_state_dict_from_verl_checkpoint
from trinity.launch.ending import job_summary
from trinity.monitor.jsonl import read_metrics
from trinity.monitor.monitor import METRICS_FILE

pytestmark = pytest.mark.slow


def lines(job: Path, actor: str) -> list[dict]:
    return [line for _, _, line in comparable_metrics(job) if line["actor"] == actor]


def test_stages_have_folders_of_their_own_under_the_name_of_the_run(finished: ShortRun):
    name = finished.folder / "checkpoints" / "quickstart" / "addition"
    assert sorted(p.name for p in name.iterdir() if p.is_dir()) == ["rft", "sft_warmup"]


def test_each_stage_is_summed_up_at_the_end_and_in_its_folder(finished: ShortRun):
    heads = [
        line for line in (finished.folder / "output.txt").read_text().splitlines() if line.startswith("summary of")
    ]
    assert [head.partition(": ")[2].split(",")[:2] for head in heads] == [
        ["done", " training step 5"],
        ["done", " training step 8"],
    ]
    warm_up, rft = (job_summary(finished.job(stage)) for stage in ("sft_warmup", "rft"))
    assert [each.metric for each in warm_up.metrics] == ["actor/sft_loss"] and warm_up.rollouts == {}
    assert rft.metrics[0].last_step == 4 and rft.time.keys() >= {"explore", "train", "sync", "evaluate"}
    assert (rft.stage, warm_up.best) == ("rft", None) and not [*warm_up.notes, *rft.notes]


def test_each_actor_has_its_log_file_and_tensorboard_lies_under_monitor(finished: ShortRun):
    job = finished.job("rft")
    assert {"explorer.log", "trainer.log"} <= {p.name for p in (job / "log").iterdir()}
    assert "checkpoint of step 8" in (job / "log" / "trainer.log").read_text()
    assert "torch engine" in (job / "log" / "explorer.log").read_text()
    assert list((job / "monitor" / "tensorboard").rglob("events.out.tfevents.*"))


def test_tensorboard_shows_the_numbers_of_metrics_jsonl(finished: ShortRun):
    job = finished.job("rft")
    events = EventAccumulator(str(job / "monitor" / "tensorboard" / "trainer"))
    events.Reload()
    logged = {line["step"]: line["actor/grad_norm"] for line in lines(job, "trainer") if "actor/grad_norm" in line}
    shown = {event.step: event.value for event in events.Scalars("actor/grad_norm")}
    assert shown.keys() == logged.keys()
    assert all(shown[step] == pytest.approx(logged[step], rel=1e-6) for step in logged)


def test_the_second_stage_starts_from_the_model_of_the_first(finished: ShortRun):
    first = finished.job("sft_warmup") / "global_step_5" / "actor" / "huggingface"
    saved = (finished.job("rft") / "config.yaml").read_text()
    assert str(first) in saved


def test_each_update_moves_the_weights(finished: ShortRun):
    outcome = finished.outcome()
    assert outcome["rft"]["weights"] != outcome["sft_warmup"]["weights"]
    norms = [line["actor/grad_norm"] for line in lines(finished.job("rft"), "trainer")]
    assert len(norms) == 8 and min(norms) > 0


@pytest.mark.difference("Evaluation")
def test_evaluation_runs_at_the_start_at_each_interval_and_at_the_end(finished: ShortRun):
    evaluated = [
        line["step"] for line in lines(finished.job("rft"), "explorer") if any(key.startswith("eval/") for key in line)
    ]
    assert evaluated == [0, 2, 4]


@pytest.mark.difference("Time metrics of the explorer")
def test_times_and_outcomes_of_the_explorer_have_their_documented_names(finished: ShortRun):
    found = read_metrics(finished.job("rft") / METRICS_FILE)
    names = {name for line in found if line["actor"] == "explorer" for name in line}
    assert {"time/explore_step", "time/sync_weight", "rollout/finished_task_count", "rollout/failed_run_count"} <= names
    assert not [name for name in names if name.startswith("explorer/")]


def test_engine_and_trainer_agree_on_log_probabilities_in_float32(finished: ShortRun):
    found = [
        line["training/rollout_logprobs_diff_max"]
        for line in lines(finished.job("rft"), "trainer")
        if "training/rollout_logprobs_diff_max" in line
    ]
    assert len(found) == 4, "once a rollout: the first update sees rows of the trainer's own version"
    assert max(found) <= 1e-5


def test_staleness_says_how_many_updates_lie_between_rollout_and_training(finished: ShortRun):
    found = [line["sample/staleness/mean"] for line in lines(finished.job("rft"), "trainer")]
    assert found == [0.0, 1.0] * 4


def test_the_exported_model_loads_in_transformers_and_equals_the_sharded_checkpoint(finished: ShortRun):
    actor = finished.job("rft") / "global_step_8" / "actor"
    model = AutoModelForCausalLM.from_pretrained(actor / "huggingface")
    exported = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sharded = load_fsdp_state_dict_from_verl_checkpoint(str(actor))
    model.load_state_dict(sharded)
    assert all(torch.equal(exported[name], tensor) for name, tensor in model.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(actor / "huggingface")
    assert tokenizer.chat_template


def test_checkpoints_verify_and_the_hint_files_name_the_last(finished: ShortRun):
    for stage, step in (("sft_warmup", 5), ("rft", 8)):
        store = CheckpointStore(finished.job(stage))
        assert store.latest() == finished.job(stage) / f"global_step_{step}"
        assert (finished.job(stage) / "latest_checkpointed_iteration.txt").read_text() == str(step)
        assert len(store.steps()) == 2, "max_checkpoints_to_keep is 2"


def test_every_experience_was_trained_once(finished: ShortRun):
    import sqlite3

    with sqlite3.connect(finished.job("rft") / "buffer" / "experience.db") as database:
        states = dict(database.execute("select state, count(*) from experience group by state"))
        steps = dict(database.execute("select trained_step, count(*) from experience group by trained_step"))
    assert states == {"trained": 128}
    assert steps == dict.fromkeys(range(1, 9), 16)


def test_running_a_finished_run_again_changes_nothing_and_succeeds(finished: ShortRun):
    before = finished.outcome()
    status, output = finished.finish()
    assert status == 0, output
    assert output.count("is already complete") == 2
    assert finished.outcome() == before


def test_the_record_says_that_each_stage_is_done(finished: ShortRun):
    for stage in ("sft_warmup", "rft"):
        record = json.loads((finished.job(stage) / "run.json").read_text())
        assert record["status"] == "done" and record["facts"]["threads"] == 1


def test_a_piped_run_prints_plain_lines(finished: ShortRun):
    output = (finished.folder / "output.txt").read_text()
    assert "\x1b[" not in output and "[rft] step 8/8" in output
