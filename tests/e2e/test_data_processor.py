"""The guide's sections `service` and `data_processor` in one run, with the real Data-Juicer on a CPU."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.e2e.tiny_run import TinyRun
from tests.judge import SCORES, write_judge
from trinity.common.experience import Experience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GUIDE = ROOT / "tests" / "seeds" / "guide.yaml"
JUDGES = ("qwen2.5-7b-instruct", "judge")  # of the guide's filter, and of the recipe that it names
MIN_SCORE = 0.5  # the guide's 0.0 keeps whatever has a score


def of_the_guide(run: TinyRun) -> dict[str, str]:
    """Put the guide's two sections into a run of another model, data and size; return its environment."""
    guide = yaml.safe_load(GUIDE.read_text())
    run.change(service=guide["service"], data_processor=guide["data_processor"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = run.tree["service"]["data_juicer"]
    place |= {"server_url": place["server_url"].replace("5005", str(port)), "port": port}
    tasks = run.tree["data_processor"]["task_pipeline"]
    tasks["num_process"] = 2
    tasks["operators"][0]["args"]["min_score"] = MIN_SCORE
    recipe = run.tree["data_processor"]["experience_pipeline"]["operators"][0]["args"]
    recipe["config_path"] = str(ROOT / recipe["config_path"])
    write_judge(run.folder / "judge")
    judge = {"model_path": "judge", "max_model_len": 2048, "max_prompt_tokens": 2000, "max_response_tokens": 8}
    run.change(explorer__auxiliary_models=[{"name": name, **judge} for name in JUDGES])
    run.change(explorer__max_timeout=300, buffer__total_steps=1, buffer__explorer_input__taskset__path="tasks")
    return {"TRINITY_TASKSET_PATH": str(run.folder / "train.jsonl")}


def test_tasks_are_filtered_and_rewards_are_shaped_in_one_run(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    raw = [{"question": f"{a}+{a + 1}=", "answer": str(2 * a + 1), "note": a} for a in range(10)]
    run.write_rows(raw)
    ended = run.finish(environment=of_the_guide(run), timeout_s=500)
    assert ended.status == 0, ended.output[-4000:]
    tasks = [json.loads(line) for line in (tmp_path / "tasks" / "output.jsonl").read_text().splitlines()]
    report = json.loads((tmp_path / "tasks" / "_report.json").read_text())
    # A judge gives three scores, each as likely: the lowest is below the limit.
    assert (report["tasks_in"], report["tasks_out"]) == (len(raw), len(tasks)) and 0 < len(tasks) < len(raw)
    scores = [task["__dj__stats__"]["llm_difficulty_score"] for task in tasks]
    assert all(any(score == pytest.approx(known) for known in SCORES) and score >= MIN_SCORE for score in scores)
    kept = {(task["question"], task["answer"]) for task in tasks}
    assert kept < {(row["question"], row["answer"]) for row in raw} and not any("note" in task for task in tasks)
    stored = experiences(run.job / "buffer" / "experience.db")
    assert len(stored) == 4 and {experience.prompt_text for experience in stored} <= {question for question, _ in kept}
    changes = []
    for experience in stored:
        (before,) = (experience.metrics[name] for name in ("accuracy",))
        score = experience.info["llm_quality_score"]
        assert any(score == pytest.approx(known) for known in SCORES)
        assert experience.reward == pytest.approx(before + score)
        changes.append(score)
    (line,) = run.lines("explorer")[-1:]
    shaped = "experience_pipeline/reward_shaping_mapper/reward_diff/mean"
    assert line[shaped] == pytest.approx(sum(changes) / len(changes))


def experiences(database: Path) -> list[Experience]:
    """Return what a run has stored, in order."""
    with sqlite3.connect(database) as log:
        rows: list[tuple[Any]] = log.execute("select experience_bytes from experience_blob order by id").fetchall()
    return [Experience.deserialize(payload) for (payload,) in rows]
