"""Explorers and a trainer that run apart and meet in the job's folder and store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.e2e.parts import Parts
from trinity.cli.run import outcome_lines
from trinity.common.constants import TRAINER
from trinity.common.errors import AlreadyRunningError, CheckpointError, ConfigError, ExitCode
from trinity.common.weights import fingerprint
from trinity.launch.job import JobLock
from trinity.synchronizer.folder import STATE_FILE
from trinity.utils import failpoints

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> Parts:
    """Two explorers, of which the second joins late, and a trainer; all ran to their end."""
    made = Parts(tmp_path_factory.mktemp("parts") / "run", plugins)
    made.trees["explorer"]["buffer"]["explorer_input"]["eval_tasksets"] = [
        made.trees["explorer"]["buffer"]["explorer_input"]["taskset"] | {"name": "test"}
    ]
    made.trees["explorer"]["explorer"] |= {"eval_interval": 4, "eval_on_startup": True}
    made.trees["explorer_new"]["buffer"]["total_steps"] = 4
    # The first explorer alone explores what it may without a trainer, then ends at the deadline of its wait.
    made.trees["explorer"]["synchronizer"]["sync_timeout"] = 1
    with pytest.raises(Exception, match="waiting for version 2 .*no trainer is running") as waited:
        made.run("explorer")
    assert waited.value.code == "E5501"  # type: ignore[attr-defined]
    assert made.query("select producer, finished_step, is_open from producer") == [("explorer", 2, 1)]
    made.trees["explorer"]["synchronizer"]["sync_timeout"] = 60
    results = made.run_together("trainer", "explorer", "explorer_new")
    assert {name: result.exit_code for name, result in results.items()} == dict.fromkeys(results, ExitCode.DONE)
    return made


def test_the_trainer_consumes_from_both_and_trains_every_experience_once(parts: Parts):
    made = parts.query("select producer, count(*), count(distinct uid), max(explore_step) from experience group by 1")
    assert made == [("explorer", 32, 32, 8), ("explorer_new", 16, 16, 4)]
    assert parts.query("select state, use_count, count(*) from experience group by 1, 2") == [("trained", 1, 48)]
    assert parts.query("select count(*), count(distinct uid) from step_exp") == [(48, 48)]
    assert [line["step"] for line in parts.lines("trainer")] == list(range(1, 13))
    assert parts.query("select producer, is_open from producer") == [("explorer", 0), ("explorer_new", 0)]


@pytest.mark.difference("Several explorers apart")
def test_weights_reach_both_explorers_and_staleness_is_bounded(parts: Parts):
    for name in ("explorer", "explorer_new"):
        versions = [line["rollout/model_version"] for line in parts.lines(name) if "rollout/model_version" in line]
        assert versions == sorted(versions) and len(set(versions)) > 1 and all(v % 2 == 0 for v in versions), versions
    # Each of two explorers makes at most two batches beyond what the newest version needed.
    assert max(line["sample/staleness/max"] for line in parts.lines("trainer")) <= 2 * 2 + 1


def test_an_explorer_evaluates_on_its_own_schedule_and_at_its_end(parts: Parts):
    evaluated = {
        line["step"]: line["eval/model_version"] for line in parts.lines("explorer") if "eval/model_version" in line
    }
    assert list(evaluated) == [0, 4, 8] and evaluated[0] == 0 < evaluated[4] <= evaluated[8]
    assert [line["step"] for line in parts.lines("explorer") if "rollout/model_version" in line] == list(range(1, 9))


def test_bench_evaluates_every_checkpoint_or_the_latest(parts: Parts, caplog: pytest.LogCaptureFixture):
    explorer = parts.trees["explorer"]
    tree = {key: explorer[key] for key in ("project", "name", "checkpoint_root_dir", "algorithm", "model", "buffer")}
    parts.trees["bench"] = tree | {"mode": "bench", "explorer": {"eval_on_startup": True}}
    result = parts.run("bench")
    assert result.exit_code == ExitCode.DONE
    key = "bench/test/reward/mean@1"
    scores = {line["step"]: line[key] for line in parts.lines("bench")}
    assert list(scores) == [0, 2, 4, 6, 8, 10, 12] and len(set(scores.values())) > 1, scores
    table = outcome_lines(result)
    names = ["initial model", *(f"global_step_{step}" for step in list(scores)[1:])]
    assert [line.split("  ")[0] for line in table if " reward " in line] == names
    assert f"{scores[12]:.4f}" in next(
        line for line in table if line.startswith("global_step_12") and " reward " in line
    )
    apart = ("explorer.rollout_model.engine_num=2", "explorer.runner_isolation=process")
    assert parts.run("bench", "explorer.eval_on_startup=false", *apart).exit_code == ExitCode.DONE
    del scores[0]
    assert {line["step"]: line[key] for line in parts.lines("bench")} == scores
    assert parts.run("bench", "explorer.bench_on_latest_checkpoint=true", "explorer.eval_on_startup=false").stages
    assert {line["step"]: line[key] for line in parts.lines("bench")} == {12: scores[12]}
    with pytest.raises(CheckpointError, match="holds no checkpoint") as empty:
        parts.run("bench", "name=nothing", "explorer.eval_on_startup=false")
    assert empty.value.code == "E7042"
    caplog.set_level("INFO")
    assert parts.run("bench", "name=nothing").exit_code == ExitCode.DONE
    assert "nothing holds no checkpoint: the initial model" in caplog.text


def test_a_live_name_a_whole_job_and_another_shape_of_run_are_refused(parts: Parts, tmp_path: Path):
    held = JobLock(parts.job, "explorer", command="trinity run --config explorer.yaml")
    try:
        with pytest.raises(AlreadyRunningError, match="live part named 'explorer' already .pid") as again:
            parts.run("explorer")
        assert (again.value.code, again.value.exit_code) == ("E8002", ExitCode.ALREADY_RUNNING)
        with pytest.raises(AlreadyRunningError, match="explorer: pid") as whole:
            JobLock(parts.job)
        assert whole.value.code == "E8001"
        JobLock(parts.job, "another").release()
    finally:
        held.release()
    with pytest.raises(CheckpointError, match="was begun in parts") as shape:
        parts.run("explorer", "mode=both", "trainer.save_interval=1")
    assert shape.value.code == "E7040"
    with pytest.raises(ConfigError, match="has run in .* before") as again:
        parts.run("explorer", "continue_from_checkpoint=false")
    assert again.value.code == "E1840"


def test_a_job_has_one_live_trainer_whatever_its_name(parts: Parts):
    live = JobLock(parts.job, TRAINER, command="trinity run --config trainer.yaml")
    try:
        for name in ("trainer", "learner"):
            with pytest.raises(AlreadyRunningError, match="has a live trainer already .pid .* one, whatever") as second:
                parts.run("trainer", f"trainer.name={name}")
            assert (second.value.code, second.value.exit_code) == ("E8003", ExitCode.ALREADY_RUNNING)
    finally:
        live.release()
    # Under another name it is the same trainer, whose other keys may not change either.
    with pytest.raises(CheckpointError, match="optimizer.lr") as changed:
        parts.run("trainer", "trainer.name=learner", "algorithm.optimizer.lr=0.5")
    assert changed.value.code == "E7004" and "trainer.name" not in changed.value.args[0]


def test_a_trainer_that_comes_back_under_another_name_trains_what_was_lost(tmp_path: Path, plugins: Path):
    made = Parts(tmp_path / "run", plugins)
    for name in ("trainer", "explorer"):
        made.trees[name]["synchronizer"] |= {"sync_interval": 1, "sync_offset": 4}
    made.trees["explorer"]["buffer"]["total_steps"] = 4
    made.run("explorer")

    def fail(place: str, *overrides: str) -> tuple[int, str]:
        failpoints.configure(place)
        try:
            with pytest.raises(RuntimeError, match="failpoint"):
                made.run("trainer", *overrides)
        finally:
            failpoints.configure("")
        said = json.loads((made.job / STATE_FILE).read_text())
        return said["version"], said["fingerprint"]

    assert fail("train.after_step=raise@2", "trainer.save_interval=0")[0] == 1
    unfinished = made.job / "weights" / ".version_2.7.tmp"
    unfinished.mkdir()
    # Without a checkpoint it begins again, and whoever serves the lost version 1 is given the initial model.
    model = load_file(made.folder / "model" / "model.safetensors")
    assert fail("train.before_step=raise@1") == (0, fingerprint(model))
    assert not unfinished.exists()
    # The checkpoint is of step 2, and step 3 is in the ledger.
    assert fail("train.after_step=raise@4", "trainer.name=first")[0] == 3
    assert made.query("select max(step) from train_step") == [(3,)]
    again = made.run("trainer", "trainer.name=second")
    assert (again.exit_code, again.stages[0].training_step) == (ExitCode.DONE, 4)
    assert made.query("select state, use_count, count(*) from experience group by 1, 2") == [("trained", 1, 16)]
    steps = made.query("select step, count(distinct uid), count(*) from step_exp group by 1")
    assert steps == [(step, 4, 4) for step in (1, 2, 3, 4)]


@pytest.mark.difference("Keys that files of one job share")
def test_files_of_one_job_that_disagree_are_shown_key_by_key(parts: Parts):
    with pytest.raises(ConfigError) as found:
        changed = ("synchronizer.sync_interval=3", "buffer.trainer_input.experience_buffer.capacity=99")
        parts.run("explorer_new", "explorer.name=third", *changed)
    message = found.value.args[0]
    assert "experience_buffer.capacity: 99 in third, 10000 in explorer\n" in message
    assert found.value.code == "E1810" and "synchronizer.sync_interval: 3 in third, 2 in explorer\n" in message
    assert "sync_timeout" not in message and "path" not in message
    with pytest.raises(CheckpointError, match="temperature") as changed:
        parts.run("explorer", "model.temperature=0.5")
    assert changed.value.code == "E7004"


def test_explorers_apart_may_follow_the_trainer_without_a_fixed_schedule(tmp_path: Path, plugins: Path):
    made = Parts(tmp_path / "run", plugins)
    for tree in made.trees.values():
        tree["synchronizer"] |= {"sync_style": "fully_async", "sync_interval": 1, "max_staleness": 3}
    for name in ("explorer", "explorer_new"):
        made.trees[name]["buffer"]["total_steps"] = 4
    results = made.run_together("trainer", "explorer", "explorer_new")
    assert {name: result.exit_code for name, result in results.items()} == dict.fromkeys(results, ExitCode.DONE)
    assert made.query("select state, use_count, count(*) from experience group by 1, 2") == [("trained", 1, 32)]
    for name in ("explorer", "explorer_new"):
        versions = [line["rollout/model_version"] for line in made.lines(name) if "rollout/model_version" in line]
        assert len(versions) == 4 and versions == sorted(versions) and versions[-1] > 0, versions
    # The bound of one explorer, and one batch of the other beyond it.
    assert max(line["sample/staleness/max"] for line in made.lines("trainer")) <= 3 + 1


def test_explorers_apart_whose_tasks_begin_one_by_one_share_the_bound(tmp_path: Path, plugins: Path):
    made = Parts(tmp_path / "run", plugins)
    for tree in made.trees.values():
        tree["synchronizer"] |= {"sync_style": "fully_async", "sync_interval": 1, "max_staleness": 3}
    for name in ("explorer", "explorer_new"):
        made.trees[name]["synchronizer"] |= {"update_in_flight": True}
        made.trees[name]["buffer"]["total_steps"] = 4
    results = made.run_together("trainer", "explorer", "explorer_new")
    assert {name: result.exit_code for name, result in results.items()} == dict.fromkeys(results, ExitCode.DONE)
    assert made.query("select state, use_count, count(*) from experience group by 1, 2") == [("trained", 1, 32)]
    ids = made.query("select distinct task_id from experience order by 1")
    assert len(ids) == 2 * 4 * 2, "the ids name the explorer and the reading"
    ages = [line["sample/staleness/mean"] for line in made.lines("trainer") if "sample/staleness/mean" in line]
    assert sum(ages) / len(ages) <= 3 + 1
