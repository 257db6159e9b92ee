"""Experiences as parquet and JSON lines, read by another program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
import torch

from tests.buffer.store.oracle import BUFFER, CONSUMER, PRODUCER, RUN
from tests.tiny_vision import picture
from trinity.buffer.export import PAGE, Form, export_experiences, pages
from trinity.buffer.records import Records
from trinity.buffer.store import ExperienceStore
from trinity.buffer.wanted import Wanted
from trinity.common.errors import DataError, EnvironmentProblem
from trinity.common.experience import EID, Experience
from trinity.common.images.reading import image_bytes

NUMBER = PAGE + 40
TALK = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "how many?"}]},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "count", "arguments": {"of": "圆"}}}]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "three"},
]
TOOLS = [{"type": "function", "function": {"name": "count", "parameters": {}}}]
"""A conversation of several turns, with an image and a tool."""

SHOWN = [picture(1), picture(2)]
IMAGES = {
    "image_bytes": torch.frombuffer(bytearray(b"".join(SHOWN)), dtype=torch.uint8),
    "image_sizes": torch.tensor([len(each) for each in SHOWN]),
}


def truth_of(number: int) -> Any:
    """Return a truth of one of the types that rows have, or none."""
    return ["42", 7, None, {"answer": "圆"}][number % 4]


def made(number: int) -> Experience:
    length = 1 + number % 3
    return Experience(
        eid=EID(1, number // 4, number % 4),
        tokens=torch.arange(number, number + 2 + length),
        prompt_length=2,
        logprobs=torch.linspace(-1.0, -0.25, length),
        advantages=torch.full((length,), number / 8),
        action_mask=[True] * (length - 1) + [number % 2 == 0],
        reward=number / 4,
        metrics={"accuracy": float(number % 2)},
        info={"model_version": number % 5, "note": 'a "quoted", 变量\n', "truth": truth_of(number)}
        | ({"model_versions": [*range(number % 5, number % 5 + length)]} if number % 7 == 6 else {}),
        prompt_text=f"p{number}\x00 \ud800",
        response_text=f"答{number}",
        truncate_status="response_truncated" if number == 3 else None,
        messages=TALK if number % 2 else None,
        tools=TOOLS if number % 2 else None,
        multi_modal_inputs=IMAGES if number % 64 == 61 else None,
    )


@pytest.fixture
def database(store_url: str) -> str:
    """A store of more rows than a page; step 1 trained the first four, step 2 the next, and one was pruned."""
    with ExperienceStore(store_url) as store:
        store.append(BUFFER, [made(number) for number in range(NUMBER)], run=RUN, producer=PRODUCER, explore_step=1)
        token = store.open_consumer(BUFFER, CONSUMER, run=RUN, cut=0)
        for step in (1, 2):
            store.commit_step(token, step, [each.eid.uid for each in store.claim(token, 4)])
        store.prune(token, 1)
    return store_url


def written(url: str, file: Path, form: Form, **wanted: Any) -> tuple[int, int]:
    records = Records(url)
    try:
        return export_experiences(records, Wanted(**wanted), file, form=form)
    finally:
        records.close()


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_another_program_reads_every_column(database: str, tmp_path: Path, form: Form) -> None:
    file = tmp_path / "new" / f"all.{form}"
    assert written(database, file, form) == (NUMBER, 4)
    known = {each.eid.uid: each for each in map(made, range(NUMBER))}
    reader = "read_parquet" if form == "parquet" else "read_json"
    found = duckdb.sql(f"select * from {reader}('{file}') order by id").fetchall()
    names = [column[0] for column in duckdb.sql(f"describe select * from {reader}('{file}')").fetchall()]
    rows = [dict(zip(names, row, strict=True)) for row in found]
    assert {row["uid"] for row in rows} == known.keys()
    lines = file.read_text(encoding="utf-8").splitlines() if form == "jsonl" else []
    plain = {line["uid"]: line for line in map(json.loads, lines)}
    for row in rows:
        each = known[row["uid"]]
        assert (row["task_id"], row["run_id"], row["reward"]) == (each.eid.tid, each.eid.run, each.reward)
        assert row["response_text"] == each.response_text and row["prompt_text"].startswith(f"p{each.tokens[0]}\ufffd")
        assert row["state"] == ("trained" if row["trained_step"] else "ready") and row["buffer"] == BUFFER
        if row["trained_step"] == 1:
            assert row["tokens"] is row["logprobs"] is row["metrics"] is None
            continue
        shown = row["images"] or []
        found_images = [image_bytes(each) for each in shown]
        assert found_images == (SHOWN if each.multi_modal_inputs else []), "bytes, or data: URIs"
        for name in ("tokens", "logprobs", "advantages", "action_mask"):
            assert row[name] == getattr(each, name).tolist(), name
        assert each.logprobs is not None and len(row["logprobs"]) == each.response_length
        assert (row["prompt_length"], row["truncate_status"]) == (2, each.truncate_status)
        info = plain[row["uid"]]["info"] if plain else json.loads(row["info"])
        assert info == each.info
        version = each.info["model_version"]
        assert row["token_versions"] == each.info.get("model_versions", [version] * each.response_length)
        nested = plain.get(row["uid"], row)  # DuckDB guesses a type for what is nested in JSON lines
        truth = each.info["truth"]
        text = truth if truth is None or isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
        assert plain.get(row["uid"], row)["truth"] == text
        metrics = row["metrics"] if isinstance(row["metrics"], dict) else json.loads(row["metrics"])
        assert metrics == each.metrics, "the parts of the reward"
        for name in ("messages", "tools"):
            value = json.loads(nested[name]) if isinstance(nested[name], str) else nested[name]
            assert value == getattr(each, name), name
    mean = duckdb.sql(
        f"select trained_step, avg(reward) from {reader}('{file}') where trained_step is not null group by 1 order by 1"
    )
    assert mean.fetchall() == [(1, 0.375), (2, 1.375)]


def test_tokens_of_a_version_are_found_where_an_update_came_during_a_response(database: str, tmp_path: Path) -> None:
    for form, reader in (("parquet", "read_parquet"), ("jsonl", "read_json")):
        file = tmp_path / f"all.{form}"
        written(database, file, form)  # type: ignore[arg-type]
        query = f"""select count(*) from (select unnest(token_versions) as version from {reader}('{file}')
            where token_versions is not null) where version = 5"""
        expected = sum(made(n).info.get("model_versions", []).count(5) for n in range(4, NUMBER))
        assert duckdb.sql(query).fetchall() == [(expected,)] and expected > 3


def test_large_payloads_are_read_a_few_at_a_time(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [made(number) for number in range(12)]
    rows[5].info["large"] = "x" * 100_000
    size = max(len(row.serialize()) for row in rows[:5])
    monkeypatch.setattr("trinity.buffer.records.PAGE_BYTES", 4 * size)
    with ExperienceStore(store_url) as store:
        store.append(BUFFER, rows, run=RUN, producer=PRODUCER, explore_step=1)
    records = Records(store_url)
    found = [[len(row.experience_bytes or b"") for row in page] for page in pages(records, Wanted())]
    records.close()
    assert [len(page) for page in found][:3] == [4, 1, 1], "a payload that is too large comes alone"
    assert sum(map(len, found)) == 12 and all(len(page) == 1 or sum(page) <= 4 * size for page in found)


def test_only_what_is_asked_for_is_written(database: str, tmp_path: Path) -> None:
    assert written(database, tmp_path / "two.parquet", "parquet", step=2, run=RUN) == (4, 0)
    assert written(database, tmp_path / "one.jsonl", "jsonl", task="1/9") == (4, 0)
    lines = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["uid"] for line in lines] == [f"1/9/{run}/0/" for run in range(4)]
    assert lines[0]["metrics"] == {"accuracy": 0.0} and lines[0]["info"]["note"] == 'a "quoted", 变量\n'
    with pytest.raises(DataError, match="E4070"):
        written(database, tmp_path / "none.parquet", "parquet", buffer="other")
    with pytest.raises(EnvironmentProblem, match="E3601.*exists already"):
        written(database, tmp_path / "one.jsonl", "jsonl")
    (tmp_path / "in_the_way").write_text("")
    with pytest.raises(EnvironmentProblem, match="E3601.*cannot write"):
        written(database, tmp_path / "in_the_way" / "f.jsonl", "jsonl")
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
