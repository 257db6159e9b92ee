"""Checkpoint directories: whole or absent after a kill, damage detected, retention."""

from __future__ import annotations

import logging
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trinity.common import checkpoint
from trinity.common.checkpoint import LATEST, CheckpointStore, hash_tree, verify_checkpoint
from trinity.common.errors import CheckpointError
from trinity.utils import failpoints

POINTS = [name for name in failpoints.NAMES if name.startswith("ckpt.")]
CHILD = """
import sys
from pathlib import Path
from trinity.common.checkpoint import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
def fill(step):
    def write(path):
        (path / "actor").mkdir()
        (path / "actor" / "weights.bin").write_bytes(bytes([step]) * 1000)
        (path / "trainer.json").write_text(str(step))
    return write
for step in range(int(sys.argv[2]), 5):
    store.write(step, fill(step), meta={"run": "r"}, keep=2)
"""


@pytest.fixture(autouse=True)
def _disarm() -> object:
    yield
    failpoints.configure("")


def _fill(content: bytes = b"x" * 1000):
    def write(path: Path) -> None:
        (path / "actor").mkdir()
        (path / "actor" / "weights.bin").write_bytes(content)
        (path / "trainer.json").write_text("{}")

    return write


def _write(store: CheckpointStore, step: int, *, keep: int = 0, content: bytes = b"x" * 1000) -> Path:
    return store.write(step, _fill(content), meta={"run": "r", "ledger_cut": step}, keep=keep)


def _child(folder: Path, first: int, failpoint: str = "") -> int:
    arguments = [sys.executable, "-c", CHILD, str(folder), str(first)]
    return subprocess.run(arguments, env={"TRINITY_FAILPOINTS": failpoint, "PYTHONPATH": ":".join(sys.path)}).returncode


# Writes the same step twice; an argument more takes from the C library what swaps two names in one step.
REWRITE = """
import ctypes, sys
from pathlib import Path
from trinity.common.checkpoint import CheckpointStore
if len(sys.argv) > 2:
    ctypes.CDLL = lambda *_, **__: object()
store = CheckpointStore(Path(sys.argv[1]))
for text in ("first", "second"):
    store.write(7, lambda path: (path / "w").write_text(text) and None, meta={"run": "r"}, keep=2)
"""


@pytest.mark.parametrize(
    ("point", "way"),
    [(point, ()) for point in POINTS]
    + [(f"ckpt.{name}", ("in two steps",)) for name in ("before_rename", "while_replacing", "after_rename")],
)
def test_a_kill_while_a_step_is_written_again_leaves_one_of_the_two(
    tmp_path: Path, point: str, way: tuple[str, ...]
) -> None:
    is_reached = point != "ckpt.retention" and (way != () or point != "ckpt.while_replacing")
    failpoint = f"{point}=kill@{1 if point == 'ckpt.while_replacing' else 2}"
    arguments = [sys.executable, "-c", REWRITE, str(tmp_path), *way]
    environment = {"TRINITY_FAILPOINTS": failpoint, "PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run(arguments, env=environment).returncode == (-signal.SIGKILL if is_reached else 0)
    store = CheckpointStore(tmp_path)
    if point != "ckpt.while_replacing" or not way:
        assert store.latest() is not None, "who reads without the lock finds one of them at every instant"
    store.clean()
    newest = store.latest()
    assert newest is not None
    is_second = not is_reached or POINTS.index(point) >= POINTS.index("ckpt.after_rename")
    assert (newest / "w").read_text() == ("second" if is_second else "first")
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.is_dir()) == ["global_step_7"]


@pytest.mark.difference("Checkpoints")
@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_kill_at_any_failpoint_leaves_whole_checkpoints(tmp_path: Path, point: str, hit: int) -> None:
    code = _child(tmp_path, 1, f"{point}=kill@{hit}")
    reached = point != "ckpt.while_replacing" and (point != "ckpt.retention" or hit < 3)
    assert code == (-signal.SIGKILL if reached else 0)
    store = CheckpointStore(tmp_path)
    newest = store.latest()
    if newest is None:
        assert hit == 1 and POINTS.index(point) < POINTS.index("ckpt.after_rename")
    else:
        step = store.manifest(newest)["step"]
        before_rename = POINTS.index(point) < POINTS.index("ckpt.after_rename")
        expected = hit + 2 if point == "ckpt.retention" else hit - before_rename
        assert step == (expected if reached else 4)
        assert (newest / "actor" / "weights.bin").read_bytes() == bytes([step]) * 1000
    store.clean()
    assert not list(tmp_path.glob(".global_step_*"))
    assert _child(tmp_path, len(store.steps()) and store.steps()[-1] + 1 or 1) == 0
    assert store.steps()[-2:] == [3, 4]
    for step in store.steps():
        verify_checkpoint(tmp_path / f"global_step_{step}")
    assert store.latest() == tmp_path / "global_step_4"


def test_manifest_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = _write(store, 7)
    manifest = store.manifest(path)
    assert manifest["step"] == 7 and manifest["run"] == "r" and manifest["meta"]["ledger_cut"] == 7
    assert [(row["path"], row["size"]) for row in manifest["files"]] == [
        ("actor/weights.bin", 1000),
        ("trainer.json", 2),
    ]
    assert (tmp_path / LATEST).read_text() == "7"


def test_random_bit_flips_and_truncations_are_detected(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    _write(store, 1)
    path = _write(store, 2, content=random.Random(0).randbytes(3000))
    generator = random.Random(1)
    for _ in range(300):
        file = generator.choice([path / "actor" / "weights.bin", path / "trainer.json", path / "MANIFEST.json"])
        whole = file.read_bytes()
        if generator.random() < 0.3:
            file.write_bytes(whole[: generator.randrange(len(whole))])
        else:
            position = generator.randrange(len(whole) * 8)
            torn = bytearray(whole)
            torn[position // 8] ^= 1 << position % 8
            file.write_bytes(torn)
        with pytest.raises(CheckpointError, match="is damaged"):
            verify_checkpoint(path)
        file.write_bytes(whole)
    verify_checkpoint(path)


def test_damaged_newest_falls_back_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path)
    first = _write(store, 1)
    (_write(store, 2) / "trainer.json").unlink()
    with caplog.at_level(logging.WARNING, "trinity.checkpoint"):
        assert store.latest() == first
    assert "FALLING BACK" in caplog.text and "trainer.json should have 2 bytes, found nothing" in caplog.text
    rewritten = _write(store, 2, content=b"again")
    assert store.latest() == rewritten and (rewritten / "actor" / "weights.bin").read_bytes() == b"again"


def test_only_damaged_checkpoints_are_an_error(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.latest() is None
    (_write(store, 1) / "MANIFEST.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match="MANIFEST.json is torn.*continue_from_checkpoint: false"):
        store.latest()


@pytest.mark.parametrize("point", ["ckpt.after_files", "ckpt.before_rename", "ckpt.before_latest"])
def test_full_disk_leaves_older_checkpoints(tmp_path: Path, point: str) -> None:
    store = CheckpointStore(tmp_path)
    first = _write(store, 1)
    failpoints.configure(f"{point}=enospc")
    with pytest.raises(CheckpointError, match="no space left to write the checkpoint of step 2") as caught:
        _write(store, 2)
    assert caught.value.code == "E7022"
    failpoints.configure("")
    assert store.latest() in (first, tmp_path / "global_step_2")
    assert not list(tmp_path.glob(".global_step_*"))


def test_failing_writer_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        (path / "half").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CheckpointStore(tmp_path).write(1, fail, meta={}, keep=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.difference("Checkpoints")
@pytest.mark.parametrize(("keep", "left"), [(0, [1, 2, 3, 4, 5]), (1, [4, 5]), (2, [4, 5]), (3, [3, 4, 5])])
def test_retention_keeps_at_least_two(tmp_path: Path, keep: int, left: list[int]) -> None:
    store = CheckpointStore(tmp_path)
    for step in range(1, 6):
        _write(store, step, keep=keep)
    assert store.steps() == left


def test_damaged_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3):
        _write(store, step)
    (tmp_path / "global_step_3" / "trainer.json").write_text("damaged")
    _write(store, 4, keep=2)
    assert store.steps() == [2, 3, 4]


@pytest.mark.parametrize("content", ["", "garbage", "99"])
def test_latest_file_is_only_a_hint(tmp_path: Path, content: str) -> None:
    store = CheckpointStore(tmp_path)
    path = _write(store, 3)
    (tmp_path / LATEST).write_text(content)
    assert store.latest() == path


def test_manifest_of_another_step_is_refused(tmp_path: Path) -> None:
    path = _write(CheckpointStore(tmp_path), 3)
    moved = path.rename(tmp_path / "global_step_4")
    with pytest.raises(CheckpointError, match="its manifest is of step 3"):
        verify_checkpoint(moved)


@pytest.mark.parametrize("schema", [0, 2])
def test_checkpoint_of_another_version_is_refused_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: int
) -> None:
    store = CheckpointStore(tmp_path)
    _write(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "SCHEMA", schema)
        _write(store, 2)
    with pytest.raises(CheckpointError, match=f"has schema {schema}, this version reads 1") as caught:
        store.latest()
    assert caught.value.code == "E7006"


def test_an_empty_checkpoint_folder_is_passed_over_or_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path)
    (tmp_path / "global_step_9").mkdir()
    with pytest.raises(CheckpointError, match="global_step_9 is damaged: cannot read MANIFEST.json"):
        store.latest()
    whole = _write(store, 4)
    with caplog.at_level(logging.WARNING, "trinity.checkpoint"):
        assert store.latest() == whole
    assert "global_step_9 is damaged" in caplog.text


def test_hash_of_a_tree_depends_on_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    before = hash_tree(tmp_path)
    assert hash_tree(tmp_path) == before
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "y")
    renamed = hash_tree(tmp_path)
    (tmp_path / "a" / "y").write_text("2")
    assert len({before, renamed, hash_tree(tmp_path)}) == 3


def test_retention_keeps_the_newest_two_healthy_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in range(1, 7):
        store.write(step, _fill(), meta={"run": "r", "is_healthy": step < 4}, keep=2)
    assert store.steps() == [2, 3, 5, 6]
    for step in (7, 8):
        store.write(step, _fill(), meta={"run": "r", "is_healthy": True}, keep=2)
    assert store.steps() == [7, 8]
