"""The file that mode explore writes: where it is, and what cannot be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL, Examine

OUTPUT = "buffer.trainer_input.experience_buffer"
FILE = ("mode=explore", f"{OUTPUT}.storage_type=file", f"{OUTPUT}.name=kept")


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("answers.jsonl", "answers.jsonl"),
        ("a/answers.JSON", "a/answers.JSON"),
        ("answers", "answers/kept.jsonl"),
        (None, "checkpoints/p/n/buffer/kept.jsonl"),
    ],
)
def test_the_file_is_the_one_that_is_written_or_in_its_folder(
    examined: Examine, tmp_path: Path, path: str | None, file: str
) -> None:
    plan, problems = examined(MINIMAL, *FILE, *([f"{OUTPUT}.path={path}"] if path else []))
    assert not [problem.render() for problem in problems if problem.is_error]
    buffer = plan.stages[0].config.buffer.trainer_input.experience_buffer
    assert buffer is not None and buffer.backup_path == str(tmp_path / file)


def test_a_database_is_no_file(examined: Examine) -> None:
    (found,) = [p for p in examined(MINIMAL, *FILE, f"{OUTPUT}.path=sqlite:///e.db")[1] if p.is_error]
    assert (found.code, found.key) == ("E1890", f"{OUTPUT}.path")
    assert found.suggestion == "write `storage_type: sql`"


SFT = ("mode=train", "algorithm.algorithm_type=sft", "trainer.total_steps=1", f"{OUTPUT}.path=[a.jsonl, b.parquet]")


def test_a_list_of_places_is_a_dataset_and_nothing_else(examined: Examine) -> None:
    plan, problems = examined(MINIMAL, *SFT)
    assert not [problem.render() for problem in problems if problem.is_error]
    buffer = plan.stages[0].config.buffer.trainer_input.experience_buffer
    assert buffer is not None and buffer.path == ("a.jsonl", "b.parquet")
    for overrides in ((f"{OUTPUT}.path=[a.db, b.db]",), (*FILE, f"{OUTPUT}.path=[a.jsonl, b.jsonl]")):
        found = [(p.code, p.key) for p in examined(MINIMAL, *overrides)[1] if p.is_error]
        assert found == [("E1889", f"{OUTPUT}.path")]
