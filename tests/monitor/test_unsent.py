"""Which lines of the files of a run a tracker does not have yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trinity.monitor import Monitor, jsonl, unsent
from trinity.monitor.unsent import UnsentLines


def make(job: Path, actor: str = "trainer") -> Monitor:
    return Monitor(job, project="p", name="n", actor=actor, monitor_type=None)


def sent(lines: UnsentLines, key: str = "x") -> list[Any]:
    """Mark all that is unsent, and return its values."""
    values = []
    while calls := lines.read():
        for call in calls:
            values += [line[key] if key in line else line["row"][key] for line in call.lines]
            lines.mark(call)
    return values


def test_lines_of_all_actors_are_read_once_also_after_a_restart(tmp_path: Path) -> None:
    explorer, trainer = make(tmp_path, "explorer"), make(tmp_path)
    lines = UnsentLines(tmp_path / "metrics.jsonl")
    assert sent(lines) == []
    explorer.log({"x": 1}, 1)
    trainer.log({"x": 2}, 1)
    assert lines.count() == 2
    assert sent(lines) == [1, 2] and sent(lines) == []
    again = UnsentLines(tmp_path / "metrics.jsonl", json.loads(json.dumps(lines.state)))
    explorer.log({"x": 3}, 2)
    assert (again.count(), sent(again), again.count()) == (1, [3], 0)


def test_what_a_resume_logs_again_is_unsent_and_what_it_kept_is_not(tmp_path: Path) -> None:
    explorer, trainer = make(tmp_path, "explorer"), make(tmp_path)
    lines = UnsentLines(tmp_path / "metrics.jsonl")
    for step in range(4):
        explorer.log({"x": step}, step)
        trainer.log({"x": 10 + step}, step)
    assert sent(lines) == [0, 10, 1, 11, 2, 12, 3, 13]
    explorer, trainer = make(tmp_path, "explorer"), make(tmp_path)
    explorer.truncate({"lines": 3})
    trainer.truncate({"lines": 2})
    trainer.log({"x": 120}, 2)
    explorer.log({"x": 30}, 3)
    trainer.log({"x": 130}, 3)
    assert sent(lines) == [120, 30, 130]


def test_a_clock_that_is_set_back_hides_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 2e9
    monkeypatch.setattr(jsonl.time, "time", lambda: now)
    lines = UnsentLines(tmp_path / "metrics.jsonl")
    monitor = make(tmp_path)
    monitor.log({"x": 1}, 1)
    monitor.log({"x": 2}, 2)
    assert sent(lines) == [1, 2]
    now = 1e9
    monitor.log({"x": 3}, 3)
    again = make(tmp_path)
    again.truncate({"lines": 1})
    again.log({"x": 20}, 2)
    assert sent(lines) == [20]


def test_the_rows_of_a_table_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent, "MAX_BYTES", 50)
    monitor = make(tmp_path)
    for step in range(3):
        monitor.log_table("t", [{"x": 10 * step + row} for row in range(4)], step)
    lines = UnsentLines(tmp_path / "monitor" / "samples.jsonl")
    tables = []
    while calls := lines.read():
        assert len(calls) == 1, "a table is more than may be read at once"
        tables.append([line["row"]["x"] for line in calls[0].lines])
        lines.mark(calls[0])
    assert tables == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]


def test_a_long_file_is_read_in_parts_and_damaged_lines_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsent, "MAX_BYTES", 200)
    monitor = make(tmp_path)
    for step in range(50):
        monitor.log({"x": step}, step)
    path = tmp_path / "metrics.jsonl"
    text = path.read_bytes().splitlines(keepends=True)
    text[20] = b'{"actor": "trainer", "seq": 20, "st\n'
    path.write_bytes(b"".join(text) + b'{"actor": "trainer", "seq": 50, "step"')
    lines = UnsentLines(path)
    assert len(lines.read()) <= 4
    assert lines.count() == 49
    assert sent(lines) == [step for step in range(50) if step != 20]
    fresh = UnsentLines(path, {"sent": lines.sent})
    assert fresh.read() == [] and fresh.count() == 0
