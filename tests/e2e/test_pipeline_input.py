"""`save_input`: what came into the experience pipeline, once and whole over a kill, for the same readers."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests import prepared
from tests.e2e.tiny_run import TinyRun
from trinity.buffer.pipelines.pipeline_input import BUFFER
from trinity.common.experience import Experience

pytestmark = pytest.mark.slow

HALVED = {"stats_key": "accuracy", "op_type": "SUB", "weight": 0.5}
OPERATORS = [
    {"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": [HALVED]}},
    {"name": "second_task"},
]
PLUGIN = """
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator
from trinity.common.rewards import REWARD_FUNCTIONS


@EXPERIENCE_OPERATORS.register_module("second_task")
class SecondTask(ExperienceOperator):
    drops_experiences = True

    def process(self, exps):
        for each in exps:
            each.logprobs.mul_(0.5)
        return [each for each in exps if str(each.eid.task) == "1"], {}


@REWARD_FUNCTIONS.register_module("letters")
def letters(response, prompt=None):
    return {"accuracy": float(len(set(response)))}
"""


def rows(database: Path, buffer: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(database) as log:
        both = "experience join experience_blob using (id)"
        asked = f"select uid, reward, experience_bytes, explore_step from {both} where buffer = ? order by id"
        return log.execute(asked, (buffer,)).fetchall()


def test_each_experience_is_there_once_after_a_kill_between_the_two_logs(tmp_path: Path) -> None:
    run = TinyRun(tmp_path, plugin=PLUGIN).change(
        data_processor__experience_pipeline={
            "operators": OPERATORS,
            "save_input": True,
            "input_save_path": "came.jsonl",
        },
        buffer__explorer_input__default_reward_fn_type="letters",
        buffer__total_steps=3,
        continue_from_checkpoint=True,
    )
    # A step is appended to the log of the input, then to that of the run: the fourth append is the run's second step.
    killed = run.finish(failpoints="store.append.before_commit=kill@4")
    assert killed.status == -9, killed.output[-3000:]
    own, log = run.job / "buffer" / "explorer_output.db", run.job / "buffer" / "experience.db"
    assert {row[3] for row in rows(own, BUFFER)} == {1, 2} and {row[3] for row in rows(log, "experience_buffer")} == {1}
    ended = run.finish()
    assert ended.status == 0, ended.output[-3000:]
    assert "4 experiences of explore steps after 1, which are not in the log of the run, are taken back" in ended.output
    came, left = rows(own, BUFFER), {row[0]: row for row in rows(log, "experience_buffer")}
    lines = [json.loads(line) for line in (tmp_path / "came.jsonl").read_text().splitlines()]
    # three steps of two tasks with two runs, of which the operators leave the second task
    assert [(uid, step) for uid, _, _, step in came] == [
        (f"{step}/{task}/{number}/0/", step) for step in (1, 2, 3) for task in (0, 1) for number in (0, 1)
    ]
    assert [line["uid"] for line in lines] == [row[0] for row in came]
    assert len(left) == 6 and all(uid.split("/")[1] == "1" for uid in left)
    for uid, reward, payload, _ in came:
        experience = Experience.deserialize(payload)
        assert reward == experience.reward == experience.metrics["accuracy"]
        if uid in left:
            trained = Experience.deserialize(left[uid][2])
            assert trained.tokens.equal(experience.tokens) and trained.logprobs.equal(experience.logprobs * 0.5)
            assert trained.reward == pytest.approx(reward * 0.5)
    check_readers(run, own, number=len(came))


def check_readers(run: TinyRun, database: Path, *, number: int) -> None:
    """What reads the log of a run reads this one."""
    place = ("--url", str(database), "--buffer", BUFFER)
    words = ("export", "experience", *place, "--to", "jsonl", "-o", "came_too.jsonl")
    status, output = prepared.finish(words, cwd=run.folder)
    assert status == 0 and f"{number} experiences" in output, output[-2000:]
    assert len((run.folder / "came_too.jsonl").read_text().splitlines()) == number
