"""What `trinity data preview` finds, in every kind of taskset."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from tests.e2e.tiny_run import PLAIN
from tests.tiny import tiny_model, tiny_tokenizer
from tests.tiny_vision import CHAT_TEMPLATE, IMAGE_TOKENS
from trinity.cli.app import app
from trinity.common.config import Config
from trinity.launch.run import RunOptions, plan_run
from trinity.launch.trial.preview import TasksetPreview, previewed
from trinity.launch.trial.token_counts import length_ranges

ROWS = [{"question": f"{a}+{a}=", "answer": str(2 * a)} for a in range(5)]
TWICE = [*ROWS, ROWS[0]]
FORMAT = {"prompt_key": "question", "response_key": "answer"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder, "llama", seed=1)
    return folder


def config_of(folder: Path, model: Path, **values: Any) -> Config:
    """Return a resolved configuration whose `explorer_input` has these values."""
    tree = json.loads(json.dumps(PLAIN))
    tree["model"]["model_path"] = str(model)
    tree["checkpoint_root_dir"] = str(folder / "out")
    del tree["buffer"]["explorer_input"]["taskset"]
    tree["buffer"]["explorer_input"] |= values
    tree["explorer"]["rollout_model"]["enable_multimodal"] = "image_key" in json.dumps(values)
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    return plan_run(folder / "run.yaml", RunOptions()).stages[0].config


def jsonl(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def parquet(file: Path, rows: list[dict[str, Any]]) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return str(file)


def database(file: Path, rows: list[dict[str, Any]]) -> str:
    with sqlite3.connect(file) as made:
        made.execute("create table task (number integer primary key, question text, answer text)")
        made.executemany("insert into task (question, answer) values (:question, :answer)", rows)
    return f"sqlite:///{file}"


def hub(folder: Path, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a dataset as one that was downloaded."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hub"))
    place, revision = folder / "hub" / "datasets--owner--sums", "a" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(revision)
    (place / "snapshots" / revision).mkdir(parents=True)
    jsonl(place / "snapshots" / revision / "train.jsonl", rows)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return "owner/sums"


def taskset(name: str, path: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "path": path, "format": FORMAT, **more}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "sql", "hub", "list"])
def test_rows_of_every_kind_are_measured_alike(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"question": None, "answer": "2"}
    rows = [*TWICE, bad]
    more: dict[str, Any] = {"storage_type": "sql"} if kind == "sql" else {}
    path: Any
    if kind == "list":
        path = [jsonl(tmp_path / "a.jsonl", rows[:3]), parquet(tmp_path / "b.parquet", rows[3:])]
    elif kind == "hub":
        path = hub(tmp_path, rows, monkeypatch)
    else:
        make = {"jsonl": jsonl, "parquet": parquet, "sql": database}[kind]
        path = make(tmp_path / f"rows.{'db' if kind == 'sql' else kind}", rows)
    held = jsonl(tmp_path / "held.jsonl", [ROWS[4], {"question": "9+9=", "answer": "18"}])
    config = config_of(tmp_path, model, taskset=taskset("train", path, **more), eval_tasksets=[taskset("held", held)])
    trained, evaluated = previewed(config, num_shown=1)
    assert (trained.num_rows, trained.num_repeated, len(trained.bad)) == (6, 1, 1)
    assert trained.bad[0].line == {"list": 4}.get(kind, 7) and trained.bad[0].key == "question"
    assert sum(number for _, _, number in length_ranges(trained.lengths)) == 6 and len(trained.prompts) == 1
    assert (evaluated.num_rows, evaluated.overlaps) == (2, {"train": 1})


def test_several_tasksets_are_told_apart(model: Path, tmp_path: Path) -> None:
    first, second = jsonl(tmp_path / "a.jsonl", ROWS), parquet(tmp_path / "b.parquet", ROWS[3:])
    config = config_of(tmp_path, model, tasksets=[taskset("a", first), taskset("b", second)])
    found = previewed(config, num_shown=0)
    assert [(each.name, each.num_rows, each.overlaps) for each in found] == [("a", 5, {}), ("b", 2, {"a": 2})]


def test_images_are_counted_and_tell_prompts_apart(model: Path, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "model", chat_template=CHAT_TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text((model / "config.json").read_text())
    rows = [{"question": "where?", "answer": "left", "images": [picture(shade)]} for shade in (0, 90, 0)]
    section = taskset("shapes", parquet(tmp_path / "rows.parquet", rows), default_workflow_type="simple_mm_workflow")
    section["format"] = {**FORMAT, "image_key": "images"}
    config = config_of(tmp_path, model, taskset=section)
    config = config.model_copy(
        update={"model": config.model.model_copy(update={"model_path": str(tmp_path / "model")})}
    )
    found: TasksetPreview
    (found,) = previewed(config, num_shown=1)
    assert (found.num_rows, found.num_images, found.num_repeated) == (3, 3, 1)
    assert "<|image_pad|>" in found.prompts[0] and found.is_rendered


def test_more_bad_rows_than_a_run_allows_are_all_shown(model: Path, tmp_path: Path) -> None:
    bad = {"question": None, "answer": "2"}
    path = jsonl(tmp_path / "rows.jsonl", [bad, *ROWS[:3], bad])
    (found,) = previewed(config_of(tmp_path, model, taskset=taskset("train", path)), num_shown=1)
    assert (found.num_rows, [row.line for row in found.bad], found.max_bad) == (3, [1, 5], 1)
    (finding,) = found.findings()
    assert finding.code == "E4011" and "2 rows cannot be used, and a run leaves out 1 at most" in finding.message


@pytest.mark.parametrize(
    ("fate", "said"), [("drop", "left out"), ("refuse", "refused: the run does not begin"), ("keep", "cut")]
)
def test_the_taskset_says_what_happens_to_long_prompts(model: Path, tmp_path: Path, fate: str, said: str) -> None:
    section = taskset("train", jsonl(tmp_path / "rows.jsonl", ROWS), long_prompts=fate)
    config = config_of(tmp_path, model, taskset=section)
    short = config.model.model_copy(update={"max_prompt_tokens": 3, "enable_prompt_truncation": True})
    (found,) = previewed(config.model_copy(update={"model": short}), num_shown=1)
    assert found.limit is not None and found.limit[0] == 3 and found.limit[2].startswith(said)
    assert found.num_long == 5


def test_another_system_prompt_does_not_hide_that_a_question_is_evaluated(model: Path, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", ROWS)
    chats = [
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": r["question"]}]} for r in ROWS
    ]
    held = taskset("held", jsonl(tmp_path / "held.jsonl", [row | ROWS[0] for row in chats[:2]]))
    held["format"] = {"prompt_type": "messages", "messages_key": "messages", "response_key": "answer"}
    other = taskset("other", path, workflow_args={"system_prompt": "Think."})
    config = config_of(tmp_path, model, taskset=taskset("train", path), eval_tasksets=[held, other])
    trained, evaluated, second = previewed(config, num_shown=1)
    assert trained.overlaps == {} and evaluated.overlaps["train"] == 2 and second.overlaps["train"] == 5


@pytest.mark.parametrize("kind", ["sft", "sft_messages", "dpo"])
def test_files_to_train_on_are_compared_with_what_any_stage_evaluates(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jsonl(tmp_path / "rows.jsonl", ROWS)
    chats = [[{"role": "user", "content": r["question"]}, {"role": "assistant", "content": "2"}] for r in ROWS[1:3]]
    rows: list[dict[str, Any]] = {
        "sft": [{"prompt": r["question"], "response": "2"} for r in ROWS[1:3]],
        "sft_messages": [{"messages": chat} for chat in chats],
        "dpo": [{"prompt": r["question"], "chosen": "2", "rejected": "3"} for r in ROWS[1:3]],
    }[kind]
    fmt = {"prompt_type": "messages", "messages_key": "messages"} if kind == "sft_messages" else {"system_prompt": "S"}
    dataset = {"name": "warm", "storage_type": "file", "path": jsonl(tmp_path / "warm.jsonl", rows), "format": fmt}
    tree = json.loads(json.dumps(PLAIN))
    tree["model"]["model_path"], tree["checkpoint_root_dir"] = str(model), str(tmp_path / "out")
    del tree["buffer"]["explorer_input"]["taskset"]
    others = [{"question": f"{n}-{n}=", "answer": "0"} for n in range(4)]
    tree["buffer"]["explorer_input"] |= {
        "taskset": taskset("train", jsonl(tmp_path / "train.jsonl", others)), "eval_tasksets": [taskset("held", path)],
    }  # fmt: skip
    first = {
        "stage_name": "warmup", "mode": "train", "algorithm": {"algorithm_type": kind[:3]},
        "buffer": {"train_batch_size": 2, "total_steps": 1, "trainer_input": {"experience_buffer": dataset}},
    }  # fmt: skip
    tree["stages"] = [first, {"stage_name": "rl", "mode": "both", "algorithm": tree["algorithm"]}]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    done = CliRunner().invoke(app, ["data", "preview", "--config", str(tmp_path / "run.yaml"), "--json", "-n", "0"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output[done.output.index("[\n") :])
    held = [each for each in found if each["name"] == "held"][-1]
    assert held["overlaps"] == {"warm": 2} and "2 prompts are in 'warm', too" in str(held["findings"])


def picture(shade: int) -> bytes:
    """Return a PNG of one grey."""
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, shade, shade)).save(stream, "PNG")
    return stream.getvalue()
