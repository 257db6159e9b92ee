"""What a trial writes over: its own files of an earlier call, and nothing else."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from trinity.buffer.store import ExperienceStore
from trinity.cli.app import app
from trinity.common.errors import EnvironmentProblem, ExitCode
from trinity.common.experience import Experience
from trinity.common.experience_id import EID
from trinity.launch.trial.output import places, write_rollouts
from trinity.launch.trial.profiling import profiled
from trinity.launch.trial.rollouts import COMPLETED, Rollout


def rollout(run: int = 0) -> Rollout:
    experience = Experience(
        tokens=torch.tensor([1, 2, 3]),
        logprobs=torch.zeros(2),
        prompt_length=1,
        reward=1.0,
        eid=EID("debug", 0, run, 0),
    )
    return Rollout(0, 0, run, COMPLETED, "", (experience,), 1.0, 0.5, 1)


def database(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def store(file: Path) -> None:
    """Make the experience store of a run."""
    with ExperienceStore(f"sqlite:///{file}"):
        pass


def state(file: Path) -> tuple[object, ...]:
    there = file.lstat()
    return there.st_ino, there.st_mode, there.st_size, there.st_mtime_ns, sorted(os.listdir(file.parent))


FOREIGN: dict[str, Callable[[Path], object]] = {
    "configuration": lambda file: file.write_text("project: p\nname: n\n"),
    "rows": lambda file: file.write_text('{"prompt": "1+1=", "response": "2"}\n'),
    "bytes": lambda file: file.write_bytes(b"\x89PNG\xff\x00"),
    "database": lambda file: database(file, "CREATE TABLE mine (id INTEGER)"),
    "table of that name": lambda file: database(file, "CREATE TABLE experience (id INTEGER)"),
    "store of a run": store,
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "link to a file": lambda file: file.symlink_to(file.with_name("target")),
    "link to nothing": lambda file: file.symlink_to("nowhere"),
}


@pytest.mark.parametrize("name", ["out.db", "out.jsonl"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_another_wrote_is_refused_and_kept(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / "target").write_text("")
    FOREIGN[kind](tmp_path / name)
    before = state(tmp_path / name)
    for act in (
        lambda: places(tmp_path / name, tmp_path, is_profiled=False, is_kept=False).check(),
        lambda: write_rollouts(tmp_path / name, [rollout()]),
    ):
        with pytest.raises(EnvironmentProblem, match=rf"E3433.*{name} cannot be written: .*; give another file"):
            act()
    assert state(tmp_path / name) == before


@pytest.mark.parametrize("name", ["out.db", "out.jsonl", "deep/out.json"])
def test_the_files_of_an_earlier_call_are_replaced(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    sizes = []
    for rollouts in ([rollout()], [], [rollout(), rollout(1)], [rollout()]):
        places(file, tmp_path, is_profiled=False, is_kept=False).check()
        write_rollouts(file, rollouts)
        sizes.append(file.stat().st_size)
        assert os.listdir(file.parent) == [file.name], "nothing is left beside it"
    assert name.endswith("db") or sizes[0] == sizes[3] < sizes[2] > sizes[1] == 0


def test_an_empty_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "out.db"
    file.touch()
    write_rollouts(file, [rollout()])
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT reward FROM experience").fetchall() == [(1.0,)]


@pytest.mark.parametrize("file", ["/proc/x.db", "/proc/x.jsonl", "/proc/deep/x.db", "{folder}/file/x.db"])
def test_a_place_where_no_file_can_be_made_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "file").touch()
    place = Path(file.format(folder=tmp_path))
    for act in (
        lambda: places(place, tmp_path, is_profiled=False, is_kept=False).check(),
        lambda: write_rollouts(place, [rollout()]),
    ):
        with pytest.raises(EnvironmentProblem, match="E3433.*cannot be written"):
            act()


def test_a_profile_replaces_a_profile_alone(tmp_path: Path) -> None:
    given = places(tmp_path / "report.html", tmp_path, is_profiled=True, is_kept=False)
    for _ in range(2):
        given.check()
        with profiled(given.profile, []) as written:
            pass
    written.write_text("notes of mine")
    with pytest.raises(EnvironmentProblem, match=rf"E3433.*{written.name} cannot be written"):
        given.check()
    assert written.read_text() == "notes of mine"


@pytest.mark.parametrize("words", [("try", "--output"), ("debug", "--module", "workflow", "--output_file")])
def test_it_is_refused_before_anything_is_read(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "run.yaml").write_text("mode: no such mode\n")
    done = CliRunner().invoke(
        app, [words[0], "--config", str(tmp_path / "run.yaml"), *words[1:], str(tmp_path / "run.yaml")]
    )
    assert done.exit_code == ExitCode.ENVIRONMENT and "error[E3433]" in done.output, done.output
    assert (tmp_path / "run.yaml").read_text() == "mode: no such mode\n"
