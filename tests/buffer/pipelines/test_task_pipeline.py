"""Tasks through the real Data-Juicer: filtered, ordered, written once, and never over something else."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from trinity.buffer.dataset import load_table
from trinity.buffer.pipelines.task_pipeline import TaskPipeline
from trinity.buffer.pipelines.task_priority import PRIORITY_WEIGHTS, dimension_scores, ordered, priorities
from trinity.buffer.task_reader import TaskReader
from trinity.common.config.buffer import FormatConfig, TasksetConfig
from trinity.common.config.model import InferenceModelConfig
from trinity.common.config.sections import DataJuicerServiceConfig, OperatorConfig, TaskPipelineConfig
from trinity.common.errors import DataError
from trinity.common.models.model import ModelWrapper
from trinity.service.data_juicer.process import installed_version
from trinity.service.data_juicer.recipe import Recipe, read_recipe

SERVICE = DataJuicerServiceConfig(auto_start=True)
NO_SERVICE = DataJuicerServiceConfig(server_url="http://127.0.0.1:9")


def test_priorities_are_the_published_weights_of_the_dimensions() -> None:
    stats: list[dict[str, Any]] = [
        {"llm_difficulty_score": 0.2, "llm_quality_score": 0.9, "perplexity": 10.0},
        {"llm_difficulty_score": 0.8, "special_char_ratio": 0.1, "perplexity": 30.0, "consumed_cnt": 2},
        {},
    ]
    # perplexity 10 and 30 are the ends of its range: 0 and 1
    first, second, third = dimension_scores(stats)
    assert first == pytest.approx({"quality": 0.9, "difficulty": 0.1})
    assert second == pytest.approx({"quality": 0.9, "difficulty": 0.9}) and third == {}
    found = priorities(stats, PRIORITY_WEIGHTS)
    # 1.0 * quality - 0.7 * difficulty + 0.8 * 0.5 - 0.5 * used
    assert found == pytest.approx([0.9 - 0.07 + 0.4, 0.9 - 0.63 + 0.4 - 1.0, 0.5 - 0.35 + 0.4])
    assert priorities([{"text_len": 3}, {}], PRIORITY_WEIGHTS) is None


def test_orders() -> None:
    priority = [0.1, 0.9, 0.5, 0.9, 0.2, 0.0]
    assert ordered(priority, 6, method="sort") == [1, 3, 2, 4, 0, 5]
    assert ordered(priority, 6, method="sort", top_k=2) == [1, 3]
    assert ordered(priority, 6, method="keep", top_k=3) == [0, 1, 2]
    assert ordered(None, 4, method="sort", top_k=3) == [0, 1, 2]
    # 1 3 2 4 0 5 in layers of every second
    assert ordered(priority, 6, method="folding", layers=2) == [1, 2, 0, 3, 4, 5]
    shuffled = ordered(priority, 6, method="shuffle", seed=3)
    assert sorted(shuffled) == [0, 1, 2, 3, 4, 5] == sorted(ordered(priority, 6, method="shuffle", seed=4))
    assert shuffled == ordered(priority, 6, method="shuffle", seed=3) != [0, 1, 2, 3, 4, 5]


def pipeline(
    tmp_path: Path, *, service: DataJuicerServiceConfig = SERVICE, min_len: int = 5, out: str = "tasks", **more
):
    operators = (
        OperatorConfig(name="text_length_filter", args={"min_len": min_len}),
        OperatorConfig(name="special_characters_filter", args={"max_ratio": 0.8}),
    )
    section = TaskPipelineConfig(
        num_process=2,
        operators=operators,
        **{"target_fields": ("q", "a"), "inputs": (str(tmp_path / "raw.jsonl"),)} | more,
    )
    taskset = TasksetConfig(
        path=str(tmp_path / out / "output.jsonl"),
        format=FormatConfig(prompt_key="q", response_key="a"),
        default_workflow_type="math_workflow",
    )
    return TaskPipeline(section, taskset, service, cache=tmp_path / "cache")


def write_raw(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


ROWS = [
    {"q": "what is (1 + 2) * 3 ?", "a": "9", "note": [1, "x"]},
    {"q": "hi", "a": "1", "note": "short"},
    {"q": "name a prime below ten", "a": "7", "note": {"deep": None}},
    {"q": "$$$$####%%%%", "a": "1", "note": None},
]


def test_tasks_are_made_once_and_read_by_the_explorer(tmp_path: Path) -> None:
    write_raw(tmp_path, ROWS)
    made = pipeline(tmp_path)
    report = made.run()
    assert (report["tasks_in"], report["tasks_out"]) == (4, 2)
    assert [(each["name"], each["rows_in"] - each["rows_out"]) for each in report["operators"]] == [
        ("text_length_filter", 1),
        ("special_characters_filter", 1),
    ]
    tasks = TaskReader(made.taskset).tasks()
    # fewer special characters are a higher quality: words before numbers
    assert [(task.raw_task["q"], task.raw_task["a"]) for task in tasks] == [(ROWS[2]["q"], "7"), (ROWS[0]["q"], "9")]
    assert tasks[0].raw_task["priority"] > tasks[1].raw_task["priority"] and "note" not in tasks[0].raw_task
    before = os.stat(made.taskset.path or "")
    # A run that continues, and another one with the same tasks: nobody is asked, as there is no server.
    assert pipeline(tmp_path, service=NO_SERVICE).run() == report
    assert os.stat(made.taskset.path or "") == before
    other = pipeline(tmp_path, service=NO_SERVICE, out="other")
    assert other.run() == report and len(TaskReader(other.taskset)) == 2
    # Other rows are other tasks, with every column where none is named; what was written is replaced as a whole.
    write_raw(tmp_path, ROWS[:1] + [{"q": "how many days has a week ?", "a": "7"}])
    again = pipeline(tmp_path, target_fields=(), top_k=1).run()
    assert (again["tasks_in"], again["tasks_out"], again["columns_left_out"]) == (2, 1, ["note"])
    assert sorted(path.name for path in (tmp_path / "tasks").iterdir()) == ["_report.json", "output.jsonl"]
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith((".making", ".old"))]
    with pytest.raises(DataError, match="leaves none of 2 tasks: text_length_filter drops 2") as none_left:
        pipeline(tmp_path, min_len=1000, out="none").run()
    assert none_left.value.code == "E4081" and not (tmp_path / "none").exists()


def test_another_version_or_another_judge_makes_them_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw(tmp_path, ROWS)
    made = pipeline(tmp_path)
    table = [load_table(path) for path in made._inputs]
    judged = read_recipe(key="k", operators=[{"llm_quality_score_filter": {"api_or_hf_model": "judge"}}])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")

    def digest(*, path: str = "model", recipe: Recipe = judged, **section: Any) -> str:
        model = InferenceModelConfig(model_path=str(tmp_path / path), **section)
        return made._digest(recipe, table, {"judge": ModelWrapper(cast(Any, None), rollout_config=model)})

    first = digest()
    assert digest() == first
    other = read_recipe(key="k", operators=[{"llm_quality_score_filter": {"api_or_hf_model": "judge", "min_score": 0}}])
    monkeypatch.setenv("OPENAI_BASE_URL", "http://here/v1")
    service = made._digest(judged, table, {})
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there/v1")
    found = [first, digest(path="model2"), digest(temperature=0.5), digest(recipe=other), service]
    found.append(made._digest(judged, table, {}))
    (tmp_path / "model" / "config.json").write_text("{ }")
    found.append(digest())
    assert len(set(found)) == len(found)
    # What another version made stays in the cache, and is not that of this one.
    output = tmp_path / "tasks"
    report = {"digest": made._digest(made_recipe(made), table, {}), "data_juicer": "1.0.0", "tasks_out": 1}
    for folder in (output, made.cache / f"{report['digest']}-1.0.0"):
        folder.mkdir(parents=True)
        (folder / "output.jsonl").write_text('{"q": "old", "a": "1"}\n')
        (folder / "_report.json").write_text(json.dumps(report))
    assert pipeline(tmp_path, service=NO_SERVICE).run()["data_juicer"] == "1.0.0", "nobody says that it is old"
    assert made.run()["data_juicer"] == installed_version(SERVICE) != "1.0.0"
    assert len(TaskReader(made.taskset)) == 2 and len(list(made.cache.iterdir())) == 2


def made_recipe(made: TaskPipeline) -> Recipe:
    config = made.config
    return read_recipe(key="k", operators=config.operators, num_process=config.num_process, text_key="q")


def test_a_folder_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    write_raw(tmp_path, ROWS)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "output.jsonl").write_text("mine")
    with pytest.raises(DataError, match="was not written by a task pipeline") as caught:
        pipeline(tmp_path, service=NO_SERVICE).run()
    assert caught.value.code == "E4080" and (tmp_path / "tasks" / "output.jsonl").read_text() == "mine"


def test_what_it_writes_has_one_split_whichever_its_inputs_had(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    made = pipeline(tmp_path, inputs=(str(folder),))
    made = dataclasses.replace(made, taskset=made.taskset.model_copy(update={"split": "test"}))
    assert made.run()["tasks_out"] == 2
    assert len(TaskReader(made.taskset)) == 2


def test_rows_that_cannot_be_read_are_counted_as_everywhere(tmp_path: Path) -> None:
    write_raw(tmp_path, ROWS)
    with (tmp_path / "raw.jsonl").open("a") as file:
        file.write("{broken\n" * 2)
    with pytest.raises(DataError, match="2 of 6 rows cannot be used"):
        pipeline(tmp_path, service=NO_SERVICE).run()


def test_columns_that_json_lines_cannot_hold_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    when = datetime.datetime(2024, 1, 1)
    table = datasets.Dataset.from_dict({"q": ["what is 1 + 2 ?"], "a": ["3"], "when": [when]})
    table.to_parquet(str(tmp_path / "raw.parquet"))
    inputs = (str(tmp_path / "raw.parquet"),)
    with pytest.raises(DataError, match=r"cannot hold when of .*raw\.parquet:1; name other columns") as caught:
        pipeline(tmp_path, service=NO_SERVICE, inputs=inputs, target_fields=()).run()
    assert caught.value.code == "E4083"
    assert pipeline(tmp_path, inputs=inputs).run()["tasks_out"] == 1
