"""`trinity try`: the rollouts of a run's first step without the run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from tests import prepared
from tests.docs.pages import page
from tests.e2e.short_run import ShortRun
from tests.e2e.tiny_run import TinyRun
from tests.prepared import DEADLINE_S
from trinity.common.errors import ExitCode
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.utils.gpu import HIDDEN, device_count

PLUGIN = """
from trinity.common.workflows import WORKFLOWS, Workflow


@WORKFLOWS.register_module("two_turns")
class TwoTurns(Workflow):
    def run(self):
        first = self.model.chat([{"role": "user", "content": self.task.task_desc}])
        second = self.model.chat([{"role": "user", "content": "again"}])
        if self.task.truth == "3":
            raise ValueError("no such tool")
        for number, answer in enumerate(first + second):
            answer.reward = float(number)
            answer.metrics = {"turns": number + 1.0}
        return first + second
"""
LINE = PLUGIN[: PLUGIN.index("raise")].count("\n") + 1


def tried(run: TinyRun, *extra: str) -> tuple[int, str]:
    """Return status and output of `trinity try`."""
    done = run.finish(*extra, words=("try", "--config", "run.yaml"))
    return done.status, done.output


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    """A configuration in which nothing has run."""
    return TinyRun(tmp_path)


def test_the_tokens_are_those_of_the_first_step_of_a_run(run: TinyRun) -> None:
    url = "sqlite:///kept.db"
    run.change(buffer__trainer_input={"experience_buffer": {"name": "kept", "storage_type": "queue", "path": url}})
    status, output = tried(run, "-n", "2", "--repeat-times", "2", "--output", "rollouts.jsonl")
    assert status == 0, output
    assert not (run.folder / "out").exists() and not (run.folder / "kept.db").exists(), "nothing is kept"
    rollouts = [json.loads(line) for line in (run.folder / "rollouts.jsonl").read_text().splitlines()]
    assert [(each["task"], each["run"]) for each in rollouts] == [(0, 0), (0, 1), (1, 0), (1, 1)]

    assert run.finish().status == 0
    with Session(create_engine(f"sqlite:///{run.folder}/kept.db")) as session:
        rows = session.scalars(select(ExperienceModel).where(ExperienceModel.explore_step == 1)).all()
        trained = {(row.task_id, row.run_id): row.to_experience() for row in rows}
    assert len(trained) == 4
    for rollout in rollouts:
        experience = trained[f"1/{rollout['task']}", rollout["run"]]
        (turn,) = rollout["turns"]
        assert turn["tokens"] == experience.tokens.tolist()
        assert turn["prompt_length"] == experience.prompt_length and turn["reward"] == experience.reward
        assert turn["logprobs"] == pytest.approx(experience.logprobs.tolist(), abs=1e-5)


def test_prompts_answers_scores_and_failures_are_printed(run: TinyRun) -> None:
    run.plugin = PLUGIN
    run.change(buffer__explorer_input__default_workflow_type="two_turns")
    status, output = tried(run, "-n", "2", "--tokens")
    assert status == ExitCode.RUNTIME, output
    first, second = output.split("task 1 (row 1), rollout 0")
    assert "task 0 (row 0), rollout 0: completed, reward 1" in first
    assert "turn 0" in first and "turn 1" in first
    assert "prompt, 4 tokens\n    0+1=\n" in first and "prompt, 5 tokens\n    again\n" in first
    assert "reward 1 (turns 2)" in first
    assert "truncated: the response was cut at its length limit" in first
    assert "         0        3  prompt              '0'" in first and "  yes  " in first
    assert f"ValueError: no such tool ({run.folder}/plugins/own.py:{LINE} in run)" in second
    assert "what the model said before that" in second and "prompt, 4 tokens\n    1+2=\n" in second
    last = output.rstrip().splitlines()[-1]
    assert last.startswith("2 rollouts of 2 tasks, 1 completed, 1 failed, reward 1 on average")


@pytest.mark.slow
def test_a_stage_begins_with_the_model_that_the_one_before_it_left(finished: ShortRun, tmp_path: Path) -> None:
    words = ["try", str(finished.folder / "quickstart.yaml"), "--output", str(tmp_path / "rollouts.jsonl")]
    for override in finished.overrides:
        words += ["--set", override]
    status, output = prepared.finish(words, cwd=prepared.ROOT)
    assert status == 0, output
    (database,) = finished.folder.rglob("rft/buffer/experience.db")
    with Session(create_engine(f"sqlite:///{database}")) as session:
        rows = session.scalars(select(ExperienceModel).where(ExperienceModel.explore_step == 1)).all()
        texts = {(row.task_id, row.run_id): (row.prompt_text, row.response_text) for row in rows}
    for line in (tmp_path / "rollouts.jsonl").read_text().splitlines():
        rollout = json.loads(line)
        (turn,) = rollout["turns"]
        assert (turn["prompt"], turn["response"]) == texts[f"1/{rollout['task']}", 0]


DOCUMENTED = [
    line
    for block in page("docs/workflows.md").code("bash")
    for line in block.splitlines()
    if line.startswith(("trinity try", "trinity env-check"))
]


@pytest.mark.runs("docs/workflows.md", "trinity try", "trinity env-check")
@pytest.mark.slow
def test_the_documented_commands_work(run: TinyRun) -> None:
    assert len(DOCUMENTED) == 3
    for line in DOCUMENTED:
        done = run.finish(words=tuple(shlex.split(line)[1:]))
        assert done.status == 0, done.output
    assert len((run.folder / "rollouts.jsonl").read_text().splitlines()) == 32


REWARD_MODEL = """
from trinity.common.models.reward_models import REWARD_MODELS, RewardModel


@REWARD_MODELS.register_module("constant")
class Constant(RewardModel):
    def score(self, experiences):
        return [9.0 for _ in experiences]
"""


def test_a_reward_model_is_not_asked_and_that_is_said(run: TinyRun) -> None:
    run.plugin = REWARD_MODEL
    run.change(trainer__trainer_config__reward_model={"enable": True, "worker": "constant"})
    status, output = tried(run, "-n", "1")
    assert status == 0 and "the reward model is not asked here: rewards are those of the workflow" in output, output
    assert "reward 9" not in output


def test_an_output_that_cannot_be_written_is_named(run: TinyRun) -> None:
    status, output = tried(run, "-n", "1", "--output", "model")
    assert status == ExitCode.ENVIRONMENT and "error[E3433]: model cannot be written" in output, output


def test_json_is_all_that_goes_to_the_output(run: TinyRun, tmp_path: Path) -> None:
    with (tmp_path / "printed.json").open("w") as file:
        assert run.start("--json", "-n", "1", words=("try", "--config", "run.yaml"), output=file).wait(DEADLINE_S) == 0
    (rollout,) = json.loads((tmp_path / "printed.json").read_text())
    assert rollout["outcome"] == "completed" and rollout["model_calls"] == 1
    assert rollout["turns"][0]["prompt"] == "0+1=" and "tokens" not in rollout["turns"][0]
    assert rollout["turns"][0]["metrics"] == {"accuracy": rollout["reward"]}


@pytest.mark.parametrize(
    ("values", "words", "said"),
    [
        ({}, ("--stage", "second"), "no stage called 'second' of the file has tasks to run"),
        ({"buffer__batch_size": "two"}, (), "buffer.batch_size"),
        ({"buffer__explorer_input__taskset__path": "nowhere.jsonl"}, (), "nowhere.jsonl"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_before_a_model_is_loaded(
    run: TinyRun, values: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    run.change(**values)
    status, output = tried(run, *words)
    assert status in (ExitCode.USAGE, ExitCode.DATA, ExitCode.ENVIRONMENT) and said in output, output
    assert "Traceback" not in output and not (run.folder / "out").exists()


def test_a_stage_without_tasks_is_refused(run: TinyRun) -> None:
    run.write_rows([{"prompt": "1+1=", "response": "2"}], "sft.jsonl")
    run.change(
        mode="train",
        algorithm={"algorithm_type": "sft"},
        buffer={
            "train_batch_size": 1,
            "total_steps": 1,
            "trainer_input": {"experience_buffer": {"name": "sft", "storage_type": "file", "path": "sft.jsonl"}},
        },
    )
    status, output = tried(run)
    assert status == ExitCode.USAGE and "error[E1920]: no stage of the file has tasks to run" in output, output
    said = " ".join(output.split())
    assert "trains on a dataset (`buffer.trainer_input.experience_buffer`)" in said and "taskset" not in said


def test_without_a_gpu_the_torch_engine_serves_a_file_for_vllm(run: TinyRun) -> None:
    run.change(
        explorer__rollout_model={"dtype": "float32", "engine_type": "vllm", "engine_num": 2},
        explorer__runner_isolation="process",
    )
    hidden = HIDDEN if device_count() else None
    done = run.finish("-n", "1", words=("try", "--config", "run.yaml"), environment=hidden)
    status, output = done.status, done.output
    assert "the torch engine in place of vLLM, because this machine has no GPU" in output, output
    assert status == 0 and "1 rollouts of 1 tasks, 1 completed" in output
