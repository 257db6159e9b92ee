"""A YAML file without stages: relative paths, epochs, database and JSON buffers, default rewards, chat templates."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import yaml

from tests.e2e.tiny_run import Ended, TinyRun
from trinity.catalogue import BUILT_IN
from trinity.common.config import examine

pytestmark = pytest.mark.slow


def done(run: TinyRun, *, steps: int = 2, is_real: bool = False) -> Ended:
    """Run to the end, which must be a success with `steps` training steps and a model."""
    ended = run.finish(is_real=is_real)
    assert ended.status == 0, ended.output
    assert "Traceback" not in ended.output
    assert [line["step"] for line in run.lines("trainer")] == list(range(1, steps + 1))
    assert (run.job / f"global_step_{steps}" / "actor" / "huggingface" / "config.json").is_file()
    return ended


def test_epochs_instead_of_steps_and_relative_paths(tmp_path: Path):
    run = TinyRun(tmp_path)
    del run.tree["buffer"]["total_steps"]
    done(run.change(buffer__total_epochs=1), is_real=True)
    questions = [line["rollout/finished_task_count"] for line in run.lines("explorer")]
    assert questions == [2, 2], "four rows, two a step, one epoch"


def test_a_relative_database_is_relative_to_the_working_directory(tmp_path: Path):
    run = TinyRun(tmp_path)
    buffer = {"name": "kept", "storage_type": "sql", "path": "sqlite:///kept.db"}
    done(run.change(buffer__trainer_input__experience_buffer=buffer))
    with sqlite3.connect(tmp_path / "kept.db") as database:
        rows = database.execute(
            "select state, length(experience_bytes) = payload_bytes from experience join experience_blob using (id)"
        ).fetchall()
    assert rows == [("trained", 1)] * 8, "a database that the user named keeps its payloads"


def test_a_queue_with_a_json_path_keeps_a_copy_of_every_experience(tmp_path: Path):
    run = TinyRun(tmp_path)
    buffer = {"name": "queued", "storage_type": "queue", "path": "backup.jsonl"}
    done(run.change(buffer__trainer_input__experience_buffer=buffer))
    lines = [json.loads(line) for line in (tmp_path / "backup.jsonl").read_text().splitlines()]
    assert len({line["uid"] for line in lines}) == 8
    assert {line["prompt_text"] for line in lines} == {"0+1=", "1+2=", "2+3=", "3+4="}


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("answers.jsonl", "answers.jsonl"),
        ("answers", "answers/kept.jsonl"),
        (None, "out/tiny/run/buffer/kept.jsonl"),
    ],
)
def test_mode_explore_writes_its_file(tmp_path: Path, path: str | None, written: str):
    run = TinyRun(tmp_path).change(mode="explore")
    del run.tree["trainer"]
    buffer = {"name": "kept", "storage_type": "file"} | ({"path": path} if path else {})
    ended = run.change(buffer__trainer_input__experience_buffer=buffer, synchronizer={"sync_timeout": 60}).finish()
    assert ended.status == 0, ended.output
    lines = [json.loads(line) for line in (tmp_path / written).read_text().splitlines()]
    assert len({line["uid"] for line in lines}) == len(lines) == 8
    assert {line["prompt_text"] for line in lines} == {"0+1=", "1+2=", "2+3=", "3+4="}
    assert all(line["response_text"] and line["reward"] is not None for line in lines)


def test_a_file_lacks_nothing_and_repeats_nothing_after_a_kill_between_log_and_file(tmp_path: Path):
    run = TinyRun(tmp_path).change(mode="explore", deterministic=True)
    del run.tree["trainer"]
    buffer = {"name": "kept", "storage_type": "file", "path": "answers.jsonl"}
    run.change(buffer__trainer_input__experience_buffer=buffer, synchronizer={"sync_timeout": 60})
    killed = run.finish(failpoints="store.append.after_commit=kill@2")
    assert killed.status not in (0, 1), killed.output
    file = tmp_path / "answers.jsonl"
    file.write_text(file.read_text()[:-9])  # and the line before it was cut off by the end of the process
    assert run.finish().status == 0
    uids = [json.loads(line)["uid"] for line in file.read_text().splitlines()]
    assert len(set(uids)) == len(uids) == 8


TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool['name'] }}{{ tool['arguments'] | length }};{% endfor %}{% endif %}"
    "{% if enable_thinking %}?{% endif %}Q{{ messages[-1]['content'] }}"
)


@pytest.mark.parametrize("place", ["one process", "processes"])
def test_a_taskset_renders_its_template_and_the_tools_of_its_rows(tmp_path: Path, place: str):
    run = TinyRun(tmp_path).change(mode="explore")
    del run.tree["trainer"]
    tools = [
        json.dumps([{"name": "add", "arguments": ["a", "b"]}]),
        json.dumps([{"name": "neg", "arguments": []}]),
        "[]",
    ]
    rows = [{"question": f"{a}+{a}=", "answer": "1", "tools": each} for a, each in enumerate([*tools, None])]
    run.write_rows(rows)
    section = "buffer__explorer_input__taskset__format"
    run.change(**{f"{section}__chat_template": TEMPLATE, f"{section}__enable_thinking": True})
    run.change(buffer__trainer_input={"experience_buffer": {"storage_type": "file", "path": "answers.jsonl"}})
    run.change(synchronizer={"sync_timeout": 60})
    if place == "processes":
        run.change(explorer__runner_isolation="process", explorer__rollout_model={"dtype": "float32", "engine_num": 2})
    ended = run.finish()
    assert ended.status == 0, ended.output
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {line["prompt_text"] for line in lines} == {"add2;?Q0+0=", "neg0;?Q1+1=", "?Q2+2=", "?Q3+3="}


def test_without_a_path_a_trainer_reads_the_store_of_its_job(tmp_path: Path):
    run = TinyRun(tmp_path).change(buffer__train_batch_size=4, synchronizer={})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    for mode in ("both", "explore", "train"):
        for name in (None, "queue", "sql"):
            sets = [f"mode={mode}"] + ([f"buffer.trainer_input.experience_buffer.storage_type={name}"] if name else [])
            plan, problems = examine(tmp_path / "run.yaml", sets, catalogue=BUILT_IN, cwd=tmp_path)
            assert not [problem.render() for problem in problems if problem.is_error]
            buffer = plan.stages[0].config.buffer.trainer_input.experience_buffer
            assert buffer is not None and buffer.path == f"sqlite:///{run.job}/buffer/experience.db"


def test_math_workflow_with_its_own_reward_and_a_chat_template_file(tmp_path: Path):
    run = TinyRun(tmp_path)
    (tmp_path / "chat.jinja").write_text(
        "{% for message in messages if message['role'] != 'system' %}Q{{ message['content'] }}{% endfor %}"
    )
    run.change(
        model__chat_template_path="chat.jinja",
        model__custom_chat_template="{{ raise_exception('the file wins') }}",
        buffer__explorer_input__default_workflow_type="math_workflow",
        buffer__trainer_input__experience_buffer={"name": "queued", "path": "backup.json"},
    )
    del run.tree["buffer"]["explorer_input"]["default_reward_fn_type"]
    done(run)
    texts = {json.loads(line)["prompt_text"] for line in (tmp_path / "backup.json").read_text().splitlines()}
    assert texts == {"Q0+1=", "Q1+2=", "Q2+3=", "Q3+4="}
    assert all("rollout/accuracy/mean" in line for line in run.lines("explorer"))


def test_filters_that_drop_every_group_do_not_stop_the_run(tmp_path: Path):
    run = TinyRun(tmp_path).change(
        data_processor__experience_pipeline__operators=[{"name": "reward_filter", "args": {"threshold": 2.0}}],
        synchronizer__sync_timeout=20,
        buffer__total_steps=3,
    )
    done(run, steps=2)  # after the last exploration nothing is left to wait for
    counts = [line["experience_pipeline/experience_count"] for line in run.lines("explorer")]
    assert counts == [0, 0, 0]
    assert [line["sample/experience_count"] for line in run.lines("trainer")] == [0.0, 0.0]
    assert [line["sample/incomplete_batch_count"] for line in run.lines("trainer")] == [1.0, 1.0]


TWO_TURNS = """
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import Workflow


@WORKFLOWS.register_module("two_turns")
class TwoTurns(Workflow):
    def run(self):
        turns = [self.model.chat([{"role": "user", "content": text}])[0] for text in ("1+1=", "2+2=")]
        for turn in turns:
            turn.reward = float(turn.tokens[-1] % 2)
        return turns
"""


@pytest.mark.difference("`buffer.train_batch_size` with several experiences a rollout")
def test_rollouts_of_several_turns_are_trained_whole(tmp_path: Path):
    run = TinyRun(tmp_path, plugin=TWO_TURNS)
    ended = done(run.change(buffer__explorer_input__default_workflow_type="two_turns"))
    assert [line["sample/experience_count"] for line in run.lines("trainer")] == [8.0, 8.0]
    assert "not trained" not in ended.output


def test_experiences_that_no_training_step_took_are_told(tmp_path: Path):
    # A filter may drop some, so the trainer may take fewer than are made; this one drops none.
    operators = [{"name": "reward_filter", "args": {"threshold": -1.0}}]
    run = TinyRun(tmp_path).change(
        buffer__train_batch_size=2, data_processor__experience_pipeline={"operators": operators}
    )
    ended = done(run)
    assert "4 of 8 experiences were explored and not trained" in ended.output
    assert "buffer.train_batch_size (now 2)" in ended.output
