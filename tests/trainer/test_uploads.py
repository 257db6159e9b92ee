"""Finished checkpoints are copied beside the training, and never stop it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.stores import store
from trinity.common.checkpoint import CheckpointStore, verify_checkpoint
from trinity.common.errors import CheckpointError
from trinity.trainer.uploads import CheckpointUploads
from trinity.utils import failpoints
from trinity.utils.remote import upload
from trinity.utils.remote.copies import fetch
from trinity.utils.remote.patience import Patience
from trinity.utils.remote.upload import UNFINISHED, upload_folder

SOON = Patience(timeout_s=20.0, attempts=2, pause_s=0.01)
NAMES = {"MANIFEST.json", "actor/model.pt", "actor/huggingface/config.json"}


def save(job: Path, step: int, content: bytes = b"weights") -> Path:
    def fill(folder: Path) -> None:
        (folder / "actor" / "huggingface").mkdir(parents=True)
        (folder / "actor" / "model.pt").write_bytes(content)
        (folder / "actor" / "huggingface" / "config.json").write_text("{}")

    return CheckpointStore(job).write(step, fill, meta={}, keep=0)


def there(system: Any, address: str) -> set[str]:
    root = system._strip_protocol(address).rstrip("/") + "/"
    return {name.removeprefix(root) for name in system.find(address)}


def test_checkpoints_are_copied_whole_with_the_newest_named(
    tmp_path: Path,
    memory: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system, uploads = fsspec.filesystem("memory"), CheckpointUploads(tmp_path / "job", memory, patience=SOON)
    save(tmp_path / "job", 1)
    uploads.begin()
    save(tmp_path / "job", 2, b"others")
    uploads.offer(2)
    uploads.finish()
    assert there(system, memory) == {
        "OWNER",
        "latest_checkpointed_iteration.txt",
        *(f"global_step_{step}/{name}" for step in (1, 2) for name in NAMES),
    }
    assert system.cat_file(f"{memory}/latest_checkpointed_iteration.txt") == b"2"
    assert uploads.metrics() == {
        "perf/checkpoint/uploaded": 2.0, "perf/checkpoint/upload_pending": 0.0, "perf/checkpoint/upload_failures": 0.0
    }  # fmt: skip
    monkeypatch.setenv("TRINITY_CACHE_DIR", str(tmp_path / "cache"))
    verify_checkpoint(fetch(f"{memory}/global_step_2", patience=SOON).path)


def test_a_copy_that_was_broken_off_goes_on_and_one_of_other_weights_is_replaced(
    tmp_path: Path,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, system = save(tmp_path, 3), store()
    monkeypatch.setattr(upload, "failpoint", _breaks_off)
    with pytest.raises(KeyboardInterrupt):
        upload_folder(folder, f"{bucket}/global_step_3", seal="MANIFEST.json", patience=SOON)
    assert there(system, bucket) == {f"global_step_3/{UNFINISHED}", "global_step_3/actor/huggingface/config.json"}
    monkeypatch.setattr(upload, "failpoint", failpoints.failpoint)
    sent = upload_folder(folder, f"{bucket}/global_step_3", seal="MANIFEST.json", patience=SOON)
    assert sent == len(b"weights") + (folder / "MANIFEST.json").stat().st_size, "what is there is not sent again"
    assert there(system, bucket) == {f"global_step_3/{name}" for name in NAMES}
    assert upload_folder(folder, f"{bucket}/global_step_3", seal="MANIFEST.json", patience=SOON) == 0
    upload_folder(save(tmp_path, 30), f"{bucket}/global_step_30", seal="MANIFEST.json", patience=SOON)
    shutil.rmtree(folder)
    other = save(tmp_path, 3, b"WEIGHTS")
    assert upload_folder(other, f"{bucket}/global_step_3", seal="MANIFEST.json", patience=SOON) > len(b"WEIGHTS")
    assert system.cat_file(f"{bucket}/global_step_3/actor/model.pt") == b"WEIGHTS"
    assert there(system, bucket) == {f"global_step_{step}/{name}" for step in (3, 30) for name in NAMES}


def _breaks_off(name: str) -> None:
    raise KeyboardInterrupt


def test_a_store_that_is_gone_is_told_and_counted_and_the_next_checkpoint_brings_both(
    tmp_path: Path,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    uploads = CheckpointUploads(tmp_path, f"{bucket}-gone/job", patience=SOON)
    save(tmp_path, 1)
    with caplog.at_level(logging.INFO, "trinity"):
        uploads.offer(1)
        uploads.finish()
    assert "[E3610]" not in caplog.text and "checkpoint of step 1 is not copied to s3://" in caplog.text
    assert "training continues" in caplog.text and "those of the steps 1" in caplog.text
    assert (
        uploads.metrics()["perf/checkpoint/upload_failures"]
        == 1.0
        == uploads.metrics()["perf/checkpoint/upload_pending"]
    )
    store().mkdir(f"{bucket}-gone")
    again = CheckpointUploads(tmp_path, f"{bucket}-gone/job", patience=SOON)
    again._failed = [1]
    save(tmp_path, 2)
    again.offer(2)
    again.finish()
    assert again.metrics()["perf/checkpoint/uploaded"] == 2.0


def test_a_checkpoint_that_was_removed_meanwhile_is_told(
    tmp_path: Path,
    memory: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    uploads = CheckpointUploads(tmp_path, memory, patience=SOON)
    uploads.offer(7)
    uploads.finish()
    assert "step 7 was removed before it was copied" in caplog.text
    assert uploads.metrics()["perf/checkpoint/upload_pending"] == 0.0


def test_checkpoints_of_another_job_are_not_replaced(tmp_path: Path, memory: str) -> None:
    save(tmp_path / "first", 1, b"first")
    first = CheckpointUploads(tmp_path / "first", memory, patience=SOON)
    first.begin()
    first.finish()
    save(tmp_path / "other", 1, b"other")
    with pytest.raises(CheckpointError, match=rf"{memory} has the checkpoints of another job") as caught:
        CheckpointUploads(tmp_path / "other", memory, patience=SOON).begin()
    assert caught.value.code == "E7047"
    again = CheckpointUploads(tmp_path / "first", memory, patience=SOON)
    again.begin()
    again.finish()
    assert fsspec.filesystem("memory").cat_file(f"{memory}/global_step_1/actor/model.pt") == b"first"


def test_a_server_that_is_down_delays_neither_the_beginning_nor_the_end(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    for step in (1, 2, 3):
        save(tmp_path, step)
    uploads = CheckpointUploads(tmp_path, f"{bucket}/job", patience=Patience(timeout_s=0.5, attempts=1))
    uploads.begin()
    uploads.finish(lambda: True)
    assert "training continues, and it is tried again with each checkpoint" in caplog.text
    assert "3 of the checkpoints are not copied" in caplog.text and "those of the steps 1, 2, 3" in caplog.text
    fsspec.get_filesystem_class("s3").clear_instance_cache()
