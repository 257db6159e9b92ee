"""The shared metrics file: whole lines, running numbers, exact truncation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trinity.common.errors import DeadlineError
from trinity.monitor import jsonl
from trinity.monitor.jsonl import JsonLines, read_metrics


def numbers(path: Path, actor: str) -> list[int]:
    return [record["seq"] for record in read_metrics(path) if record["actor"] == actor]


def test_two_actors_number_their_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    explorer, trainer = JsonLines(path, "explorer"), JsonLines(path, "trainer")
    explorer.append([{"step": 1}])
    trainer.append([{"step": 1}, {"step": 2}])
    explorer.append([{"step": 2}])
    assert numbers(path, "explorer") == [0, 1]
    assert numbers(path, "trainer") == [0, 1]
    assert (explorer.num_lines, trainer.num_lines) == (2, 2)


def test_a_torn_last_line_is_cut_and_numbers_go_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonLines(path, "trainer").append([{"step": 1}, {"step": 2}])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"actor": "trainer", "seq": 2, "st')
    assert numbers(path, "trainer") == [0, 1]
    again = JsonLines(path, "trainer")
    assert path.read_bytes() == whole
    again.append([{"step": 3}])
    assert numbers(path, "trainer") == [0, 1, 2]


def test_a_last_line_of_zeros_after_a_power_loss_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonLines(path, "trainer").append([{"step": 1}])
    path.write_bytes(path.read_bytes() + b"\0\0\0\n")
    assert JsonLines(path, "trainer").num_lines == 1
    assert len(path.read_text().splitlines()) == 1


def test_truncation_keeps_the_lines_of_the_other_actor(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    explorer, trainer = JsonLines(path, "explorer"), JsonLines(path, "trainer")
    for step in range(4):
        explorer.append([{"step": step}])
        trainer.append([{"step": step}])
    kept = trainer.truncate(2)
    assert [record["step"] for record in kept] == [0, 1]
    assert numbers(path, "trainer") == [0, 1]
    assert numbers(path, "explorer") == [0, 1, 2, 3]
    trainer.append([{"step": 9}])
    assert numbers(path, "trainer") == [0, 1, 2]
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


def test_truncation_to_more_lines_than_there_are_keeps_all(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl", "trainer")
    lines.append([{"step": 1}])
    assert len(lines.truncate(5)) == 1
    assert lines.num_lines == 1


def test_threads_that_write_and_truncate_at_once_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    explorer, trainer = JsonLines(path, "explorer"), JsonLines(path, "trainer")
    trainer.append([{"step": step} for step in range(10)])

    def write() -> None:
        for step in range(200):
            explorer.append([{"step": step, "text": "x" * 300}])

    thread = threading.Thread(target=write)
    thread.start()
    for num_lines in range(9, 0, -1):
        trainer.truncate(num_lines)
    thread.join(timeout=60)
    assert numbers(path, "explorer") == list(range(200))
    assert numbers(path, "trainer") == [0]


def test_two_processes_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    code = (
        "import sys; from pathlib import Path; from trinity.monitor.jsonl import JsonLines\n"
        "lines = JsonLines(Path(sys.argv[1]), sys.argv[2])\n"
        "for step in range(150): lines.append([{'step': step, 'text': 'x' * 5000}])"
    )
    root = str(Path(__file__).resolve().parents[2])
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), actor], env={**os.environ, "PYTHONPATH": root})
        for actor in ("explorer", "trainer")
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert numbers(path, "explorer") == numbers(path, "trainer") == list(range(150))
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_disk_that_is_full_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    code = (
        "import resource, signal, sys; from pathlib import Path; from trinity.monitor.jsonl import JsonLines\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "lines = JsonLines(Path(sys.argv[1]), 'trainer'); lines.append([{'step': 0}])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))\n"
        "try: lines.append([{'step': 1, 'text': 'x' * 1000}])\n"
        "except OSError: print(lines.num_lines)"
    )
    root = str(Path(__file__).resolve().parents[2])
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == "1\n"
    assert path.read_text() == '{"actor": "trainer", "seq": 0, "step": 0}\n'


def test_a_lock_that_another_process_keeps_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LOCK_TIMEOUT_S", 0.05)
    first, second = (JsonLines(tmp_path / "metrics.jsonl", actor) for actor in ("a", "b"))
    with first._lock(), pytest.raises(DeadlineError, match=r"waiting for .*metrics\.jsonl\.lock"):
        second.append([{"step": 1}])
    second.append([{"step": 1}])
    assert second.num_lines == 1
