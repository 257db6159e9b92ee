"""What rows and files of others may hold, and never do: code, links, and other people's folders."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from trinity.buffer.dataset import load_table
from trinity.buffer.parquet import decoded_bytes
from trinity.buffer.pipelines.task_pipeline import TaskPipeline
from trinity.buffer.rows import read_rows
from trinity.common.config.buffer import TasksetConfig
from trinity.common.config.sections import DataJuicerServiceConfig, OperatorConfig, TaskPipelineConfig
from trinity.common.errors import DataError, EnvironmentProblem
from trinity.utils.disk import new_file, write_atomically


class Bomb:
    """Its pickle makes a folder when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_pickles_in_the_metadata_of_parquet_are_not_read(tmp_path: Path) -> None:
    """X12."""
    marker = tmp_path / "marker"
    bomb = pickle.dumps(Bomb(marker))
    extension = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": bomb}
    field = pyarrow.field("question", pyarrow.string(), metadata=extension)
    schema = pyarrow.schema([field, pyarrow.field("blob", pyarrow.binary())], metadata={b"pandas": bomb, b"x": bomb})
    table = pyarrow.table({"question": ["1+1"], "blob": [bomb]}, schema=schema)
    file = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(table, file)
    (row,) = read_rows(file)
    loaded = load_table(str(file)).row(0)
    assert row.values["question"] == loaded.values["question"] == "1+1" and loaded.values["blob"] == bomb
    assert not marker.exists()
    pickle.loads(bomb)  # noqa: S301 - so that the test knows a bomb that works
    assert marker.is_dir()


@pytest.mark.parametrize("path", ["http://127.0.0.1:9/train.jsonl", "s3://bucket/train.jsonl", "file:///etc/passwd"])
def test_addresses_are_no_paths_of_rows(path: str) -> None:
    """B88: nothing is fetched."""
    with pytest.raises(DataError) as caught:
        load_table(path)
    assert caught.value.code == "E4001"


def test_archives_are_no_data_files(tmp_path: Path) -> None:
    """B103."""
    for name in ("train.jsonl.gz", "train.zip", "train.tar", "train.pkl", "train.arrow"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(DataError, match="a data file must end in"):
            load_table(str(tmp_path / name))


def test_a_small_file_that_stands_for_terabytes_is_refused_before_a_row_is_made(tmp_path: Path) -> None:
    """B103: one text of 64 KiB, 2^24 times in two columns, in 80 KB of parquet."""
    words = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(2**24, dtype=np.int8)), ["x" * 2**16])
    messages = pyarrow.StructArray.from_arrays([words], names=["content"])
    file = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"q": words, "m": messages}), file, store_schema=False, compression="zstd"
    )
    assert file.stat().st_size < 200_000
    for read in (lambda: load_table(str(file)), lambda: next(iter(read_rows(file)))):
        with pytest.raises(DataError, match=r"train.parquet: its rows take \d+ [GT]iB of memory when they are decoded"):
            read()
    # What is repeated as often and fits is read, nested or not.
    rows = [{"q": "x" * 5000, "m": [{"content": "x" * 5000}]}] * 300
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    assert len(load_table(str(file))) == 300 == len(list(read_rows(file)))


def test_the_texts_of_a_file_are_counted_each_time_that_they_stand_there() -> None:
    texts = pyarrow.array(["ab", None, "cde", "ab"]).dictionary_encode()
    nested = pyarrow.array([[{"a": "xyz", "n": 1}], None, [], [{"a": "xyz", "n": 2}, {"a": None, "n": 3}]])
    encoded = nested.cast(pyarrow.list_(pyarrow.struct([("a", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
                                                         ("n", pyarrow.int64())])))  # fmt: skip
    assert (decoded_bytes(texts), decoded_bytes(encoded)) == (7, 6)


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    """X18: neither at the name of an output nor at any name that could be guessed."""
    theirs, output = tmp_path / "theirs", tmp_path / "out.jsonl"
    theirs.write_text("theirs")
    for name in (f".out.jsonl.{os.getpid()}.tmp", ".out.jsonl.tmp"):
        (tmp_path / name).symlink_to(theirs)
    write_atomically(output, "ours")
    assert output.read_text() == "ours"
    output.unlink()
    with new_file(output) as temporary:
        temporary.write_text("ours")
    assert output.read_text() == "ours" and theirs.read_text() == "theirs"
    for target in (theirs, tmp_path / "nowhere"):
        output.unlink()
        output.symlink_to(target)
        with pytest.raises(EnvironmentProblem, match="E3601.*exists already"), new_file(output):
            pass
        write_atomically(output, "ours")  # takes the place of the link
        assert not output.is_symlink() and theirs.read_text() == "theirs" and not (tmp_path / "nowhere").exists()


def test_a_link_in_place_of_the_tasks_is_not_followed(tmp_path: Path) -> None:
    """X18."""
    (tmp_path / "raw.jsonl").write_text(json.dumps({"q": "how much is it ?"}) + "\n")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "output.jsonl").write_text("theirs")
    (theirs / "_report.json").write_text(json.dumps({"digest": "other", "tasks_out": 1}))
    (tmp_path / "tasks").symlink_to(theirs)
    section = TaskPipelineConfig(
        operators=(OperatorConfig(name="text_length_filter", args={"min_len": 1}),),
        inputs=(str(tmp_path / "raw.jsonl"),),
        target_fields=("q",),
        num_process=1,
    )
    taskset = TasksetConfig(path=str(tmp_path / "tasks" / "output.jsonl"))
    TaskPipeline(section, taskset, DataJuicerServiceConfig(auto_start=True), cache=tmp_path / "cache").run()
    assert (theirs / "output.jsonl").read_text() == "theirs" and not (tmp_path / "tasks").is_symlink()
    assert "how much" in (tmp_path / "tasks" / "output.jsonl").read_text()
