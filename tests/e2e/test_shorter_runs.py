"""Runs that end before their planned steps say so; a finished one goes back where it is asked to."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.e2e.parts import Parts
from tests.e2e.tiny_run import TinyRun
from tests.prepared import DEADLINE_S
from trinity.cli.app import app
from trinity.common.errors import CheckpointError, ExitCode, StarvedError
from trinity.launch.run import RunOptions, RunResult, plan_run, run_plan

KEY = "trainer.trainer_config.trainer"
FAILING = '''
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import SimpleWorkflow


@WORKFLOWS.register_module("fails_for_some")
class FailsForSome(SimpleWorkflow):
    """Fails for the tasks that say so."""

    def run(self):
        if self.task.raw_task["answer"] == "none":
            raise LookupError("no answer")
        return super().run()
'''


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workflow, one for all tests: a process loads a plugin once."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "fails_for_some.py").write_text(FAILING)
    return folder


def run(made: TinyRun, *overrides: str, failing: Path | None = None) -> RunResult:
    file = made.folder / "run.yaml"
    file.write_text(yaml.safe_dump(made.tree))
    options = RunOptions(overrides=overrides, plugin_dirs=() if failing is None else (failing,))
    return run_plan(plan_run(file, options), options)


def test_a_finished_job_goes_back_where_resume_path_asks_and_not_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = TinyRun(tmp_path)
    assert run(made).stages[0].training_step == 2
    assert run(made).stages == [], "a finished job has nothing to do"
    assert run(made, f"{KEY}.resume_mode=resume_path", f"{KEY}.resume_from_path={made.job}/global_step_2").stages == []
    back = (f"{KEY}.resume_mode=resume_path", f"{KEY}.resume_from_path={made.job}/global_step_1")
    (stage,) = run(made, *back).stages
    assert stage.is_resumed and stage.training_step == 2
    assert (made.job / "global_step_2").is_dir() and (made.job / "global_step_2.left_1").is_dir()
    assert [line["step"] for line in made.lines("trainer")] == [1, 2]
    assert run(made, *back).stages == [], "asked for again, the same path goes back no further"
    (tmp_path / "elsewhere" / "global_step_1").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="is not a checkpoint of") as found:
        run(made, back[0], f"{KEY}.resume_from_path={tmp_path}/elsewhere/global_step_1")
    assert found.value.code == "E7044"


def test_a_trainer_whose_explorers_ended_before_its_last_step_says_so(tmp_path: Path, plugins: Path) -> None:
    parts = Parts(tmp_path / "run", plugins)
    parts.trees["trainer"]["trainer"]["total_steps"] = 5
    parts.trees["explorer"]["buffer"]["total_steps"] = 2
    with pytest.raises(StarvedError, match=r"ended at step 2 of 5 \(trainer.total_steps\): every explorer") as found:
        parts.run_together("explorer", "trainer")
    assert found.value.code == "E5401" and found.value.exit_code == ExitCode.STARVED
    assert (parts.job / "global_step_2" / "actor" / "huggingface").is_dir(), "what was trained is saved"
    parts.trees["explorer"]["buffer"]["total_steps"] = 5
    with ThreadPoolExecutor(1) as pool:
        exploring = pool.submit(parts.run, "explorer")
        while parts.query("select is_open from producer") == [(0,)]:
            assert not exploring.done(), exploring.result()
            time.sleep(0.02)
        assert parts.run("trainer").stages[0].training_step == 5
        assert exploring.result(timeout=DEADLINE_S).stages[0].explore_step == 5
    assert parts.query("select state, count(*) from experience group by 1") == [("trained", 20)]


def test_one_process_whose_last_tasks_failed_says_how_far_it_came(
    tmp_path: Path, failing: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    made = TinyRun(tmp_path).change(
        buffer__explorer_input__default_workflow_type="fails_for_some", buffer__total_epochs=1
    )
    del made.tree["buffer"]["total_steps"]
    made.write_rows([{"question": f"{a}+1=", "answer": "none" if a > 1 else str(a + 1)} for a in range(4)])
    with caplog.at_level(logging.WARNING, logger="trinity"):
        result = run(made, failing=failing)
    assert result.exit_code == ExitCode.DONE
    assert "explore step 2: no rollout was completed, and no tasks are left" in caplog.text
    assert "training ended at step 1 of 2 planned ones" in caplog.text
    assert [line["step"] for line in made.lines("trainer")] == [1]


def test_scoring_again_says_which_rollouts_never_were_stored_and_which_option_named_no_place(
    tmp_path: Path, failing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = TinyRun(tmp_path).change(
        buffer__explorer_input__default_workflow_type="fails_for_some", buffer__total_steps=1
    )
    made.write_rows([{"question": "0+1=", "answer": "1"}, {"question": "1+1=", "answer": "none"}])
    run(made, failing=failing)
    words = ["rescore", str(made.job), "--reward", "accuracy_reward", "--plugin-dir", str(failing), "-o"]
    scored = CliRunner().invoke(app, [*words, str(tmp_path / "scored.db")])
    assert "2 rollouts, for the run tiny/run-rescored\n2 never were in the store (failed/" in scored.output
    nowhere = CliRunner().invoke(app, [*words, "/proc/none/x.db"])
    assert nowhere.exit_code == ExitCode.ENVIRONMENT and "choose another --output" in " ".join(nowhere.output.split())
    assert "experience_buffer" not in nowhere.output and "checkpoint_root_dir" not in nowhere.output


def test_a_run_of_which_operators_drop_everything_is_not_complete_and_says_what_became_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = TinyRun(tmp_path).change(buffer__total_steps=1)
    pipeline = "data_processor.experience_pipeline"
    operators = f"{pipeline}.operators=[{{name: reward_filter, args: {{threshold: 2.0}}}}]"
    dropped = r"no training step was made \(rollouts: 4 issued = 0 trained \+ 4 filtered/reward_filter \+ 0 waiting\)"
    with pytest.raises(StarvedError, match=dropped) as found:
        run(made, operators)
    assert found.value.code == "E5403"
    record = json.loads((made.job / "run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("failed", ExitCode.STARVED)
    shown = CliRunner().invoke(app, ["show", str(made.job)])
    assert shown.exit_code == ExitCode.DATA and "E4070" in shown.output
    assert "rollouts of experience_buffer: 4 issued = 0 trained + 4 filtered/reward_filter" in shown.output
    # It continues with more tasks, also where an older version recorded it as done.
    (made.job / "run.json").write_text(json.dumps(record | {"status": "done", "exit_code": 0, "training_step": 0}))
    again = RunOptions(
        overrides=[f"{pipeline}.operators=[]", "buffer.total_steps=2"], accepted_changes=["data_processor"]
    )
    (stage,) = run_plan(plan_run(tmp_path / "run.yaml", again), again).stages
    assert (stage.training_step, str(stage.fates)) == (2, "8 issued = 4 trained + 4 filtered/reward_filter + 0 waiting")


def test_a_reward_that_always_raises_leaves_nothing_behind_that_counts_as_done(
    tmp_path: Path, failing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = TinyRun(tmp_path).change(
        buffer__explorer_input__default_workflow_type="fails_for_some", buffer__total_steps=3
    )
    good = [{"question": f"{a}+1=", "answer": str(a + 1)} for a in range(8)]
    made.write_rows([row | {"answer": "none"} for row in good])
    with pytest.raises(
        Exception, match="no rollout of 3 batches of tasks in a row was completed.*LookupError: no answer"
    ):
        run(made, failing=failing)
    assert not list(made.job.glob("global_step_*"))
    assert not (made.job / "metrics.jsonl").exists() or not made.lines("trainer")
    made.write_rows(good)
    (stage,) = run(made, failing=failing).stages
    assert (stage.explore_step, stage.training_step) == (3, 3)
    assert [line["sample/experience_count"] for line in made.lines("trainer")] == [4, 4, 4]
    record = json.loads((made.job / "run.json").read_text())
    assert record["status"] == "done"
