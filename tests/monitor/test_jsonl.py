"""The shared metrics file: whole lines, running numbers, exact truncation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from trinity.common.errors import DeadlineError
from trinity.monitor import jsonl
from trinity.monitor.jsonl import JsonLines, lines_from_end, locked, read_metrics

E, T = "explorer", "trainer"


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


def test_what_was_torn_is_set_aside_and_told(tmp_path: Path, caught: list[str]) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonLines(path, "trainer").append([{"step": 1}])
    whole, torn = path.read_bytes(), b'{"actor": "trainer", "seq": 1, "st'
    for number in (1, 2):
        path.write_bytes(whole + torn)
        assert JsonLines(path, "trainer").num_lines == 1
        assert path.read_bytes() == whole
        assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == (torn + b"\n") * number
    assert caught == [f"{path}: the damaged end (34 bytes) was moved to {path}.damaged"] * 2


DAMAGED = [b'{"actor": "trainer", "seq": 3, "ste\n', b"[1]\n", b"\xff\xfe{}\n", b"12\n", b"\0" * 40 + b"\n"]


@pytest.mark.parametrize("damaged", DAMAGED, ids=["half", "list", "bytes", "number", "zeros"])
@pytest.mark.parametrize("place", range(8))
def test_a_damaged_line_stops_nobody_and_stays(tmp_path: Path, caught: list[str], damaged: bytes, place: int) -> None:
    path = tmp_path / "metrics.jsonl"
    explorer, trainer = JsonLines(path, "explorer"), JsonLines(path, "trainer")
    for step in range(4):
        explorer.append([{"step": step}])
        trainer.append([{"step": step}])
    lines = path.read_bytes().splitlines(keepends=True)
    lost = json.loads(lines[place])
    lines[place] = damaged
    path.write_bytes(b"".join(lines))
    explorer, trainer = JsonLines(path, "explorer"), JsonLines(path, "trainer")
    explorer.append([{"step": 4}])
    trainer.truncate(1)
    trainer.append([{"step": 1}])
    left = {actor: [n for n in range(4) if lost != {"actor": actor, "seq": n, "step": n}] for actor in (E, T)}
    first = [n for n in left[T] if n < 1]
    assert numbers(path, "explorer") == [*left[E], left[E][-1] + 1]
    assert numbers(path, "trainer") == [*first, len(first)]
    if damaged.strip(b"\0\n"):
        aside = tmp_path / "metrics.jsonl.damaged"
        assert damaged in (aside if place == 7 else path).read_bytes()
        assert any(f"{path}: " in message and "damaged" in message for message in caught)


def test_the_half_line_of_an_actor_that_was_killed_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    trainer = JsonLines(path, "trainer")
    trainer.append([{"step": 1}])
    path.write_bytes(path.read_bytes() + b'{"actor": "explorer", "se')
    trainer.append([{"step": 2}])
    assert numbers(path, "trainer") == [0, 1]
    assert JsonLines(path, "trainer").num_lines == 2


def long_file(path: Path, *, megabytes: int) -> None:
    """Write a file of two actors with a line of 1 KiB each."""
    with open(path, "w", encoding="ascii") as file:
        for number in range(megabytes << 9):
            for actor in ("explorer", "trainer"):
                line = {"actor": actor, "seq": number, "step": number, "text": ""}
                file.write(json.dumps(line | {"text": "x" * (1023 - len(json.dumps(line)))}) + "\n")


def test_neither_a_start_nor_a_resume_reads_a_long_file_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    long_file(path, megabytes=16)
    tracemalloc.start()
    try:
        trainer = JsonLines(path, "trainer")
        kept = trainer.truncate(5000)
        assert len(kept) == jsonl.NUM_KEPT and [kept[0]["seq"], kept[-1]["seq"]] == [5000 - jsonl.NUM_KEPT, 4999]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert numbers(path, "trainer") == list(range(5000))
    assert numbers(path, "explorer") == list(range(16 << 9))


def test_a_start_reads_the_end_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # more than anybody reads: a hole, which takes no room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
        for number in range(jsonl.NUM_KEPT + 1):
            file.write(b'{"actor": "trainer", "seq": %d, "step": %d}\n' % (number, number))
    trainer = JsonLines(path, "trainer")
    assert trainer.num_lines == jsonl.NUM_KEPT + 1
    assert trainer.truncate(trainer.num_lines)[0]["seq"] == 1
    path.unlink()


@pytest.mark.parametrize("size", [*range(1, 40), 1 << 16])
def test_lines_come_from_the_end_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", size)
    lines = [b"\n", b"a\n", b"\n", b"bc\r\n", b"0123456789abcdef\n", b"tail"]
    for number in range(len(lines) + 1):
        for part in (lines[:number], lines[number:]):
            (tmp_path / "file").write_bytes(b"".join(part))
            with open(tmp_path / "file", "rb") as file:
                found = list(lines_from_end(file))
            assert [line for _, line in found] == part[::-1]
            assert [at for at, _ in found] == [len(b"".join(part[:i])) for i in reversed(range(len(part)))]


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
    with locked(first.path), pytest.raises(DeadlineError, match=r"waiting for .*metrics\.jsonl\.lock"):
        second.append([{"step": 1}])
    second.append([{"step": 1}])
    assert second.num_lines == 1
