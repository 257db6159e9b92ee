"""The table that users query, by the script of the FAQ."""

from __future__ import annotations

import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import trinity.buffer.schema.sql_schema as published
import trinity.common.schema.sql_schema as home
from trinity.buffer.store import ExperienceStore
from trinity.common.errors import DataError
from trinity.common.experience import EID, Experience
from trinity.common.schema.sql_schema import DPODataModel, ExperienceModel, SFTDataModel, TaskModel

FAQ_SCRIPT = """
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool
from trinity.common.schema.sql_schema import ExperienceModel
engine = create_engine({url!r})
session = sessionmaker(bind=engine)
sess = session()
MAX_EXPERIENCES = 4
experiences = (
    sess.query(ExperienceModel)
    .limit(MAX_EXPERIENCES)
    .all()
)
exp_list = []
for exp in experiences:
    exp_list.append(ExperienceModel.to_experience(exp))
# show the experiences
for exp in exp_list:
    print(f"{{exp.prompt_text=}}", f"{{exp.response_text=}}")
"""


def sampled(task: int) -> Experience:
    return Experience(
        eid=EID(1, task, 0),
        tokens=torch.tensor([1, 2, 3]),
        prompt_length=1,
        logprobs=torch.tensor([-1.0, -2.0]),
        reward=0.5,
        info={"model_version": 3},
        prompt_text=f"question {task}",
        response_text=f"answer {task}",
    )


def test_the_script_of_the_faq_runs_as_written(tmp_path: Path) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/countdown_buffer.db") as store:
        store.append("countdown_buffer", [sampled(t) for t in range(6)], run="r", producer="p", explore_step=1)
        script = FAQ_SCRIPT.format(url="sqlite:///countdown_buffer.db")
        environment = {"PYTHONPATH": str(Path(home.__file__).parents[3]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
        )
    assert done.stderr == "" and done.returncode == 0
    assert done.stdout.splitlines() == [
        f"exp.prompt_text='question {t}' exp.response_text='answer {t}'" for t in range(4)
    ]


def test_the_script_of_the_faq_shows_what_is_left_where_payloads_were_pruned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExperienceStore(f"sqlite:///{tmp_path}/countdown_buffer.db") as store:
        store.append("countdown_buffer", [sampled(t) for t in range(6)], run="r", producer="p", explore_step=1)
    with closing(sqlite3.connect(tmp_path / "countdown_buffer.db")) as database, database:
        database.execute("delete from experience_blob where id < 4")
    (tmp_path / "faq.py").write_text(FAQ_SCRIPT.format(url=f"sqlite:///{tmp_path}/countdown_buffer.db"))
    runpy.run_path(str(tmp_path / "faq.py"))
    assert capsys.readouterr().out.splitlines() == [
        f"exp.prompt_text='question {t}' exp.response_text='answer {t}'" for t in range(4)
    ]


def test_both_published_paths_name_the_same_classes() -> None:
    for name in ("ExperienceModel", "SFTDataModel", "DPODataModel", "TaskModel"):
        assert getattr(published, name) is getattr(home, name)


def test_a_row_holds_text_tags_and_the_whole_experience(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/e.db")
    home.Base.metadata.create_all(engine)
    before = sampled(2)
    before.prompt_text = "nul \0 and lone \ud800"
    with Session(engine) as session:
        session.add(ExperienceModel.from_experience(before, run="r", buffer="b", explore_step=4))
        session.add(SFTDataModel(message_list=[{"role": "user", "content": "q"}]))
        session.add(DPODataModel(chosen_message_list=[], rejected_message_list=[]))
        session.add(TaskModel(raw_task={"question": "q"}))
        session.commit()
        row = session.query(ExperienceModel).one()
        assert (row.uid, row.task_id, row.run_id, row.msg_id) == ("1/2/0/0/", "1/2", 0, "0")
        assert (row.model_version, row.reward, row.consumed, row.state) == (3, 0.5, 0, "ready")
        assert row.prompt_text == "nul \ufffd and lone ?"
        assert row.to_experience().prompt_text == before.prompt_text
        assert torch.equal(row.to_experience().logprobs, before.logprobs)
        row.experience_bytes = None
        left = row.to_experience()
        assert (left.eid, left.reward, left.info) == (before.eid, 0.5, {"model_version": 3})
        assert left.prompt_text == row.prompt_text and "answer 2" in repr(left)
        for read in (lambda: left.tokens, lambda: left.logprobs, lambda: left.metrics, left.serialize):
            with pytest.raises(DataError, match="1/2/0/0/ .* has no payload any more") as caught:
                read()
            assert caught.value.code == "E5104"
