"""A run whose tasks are at an address, from the fetch to a training step, and its continuation."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from tests.e2e.tiny_run import TinyRun
from tests.file_server import FileServer, file_server
from tests.stores import store
from trinity.common.config import ConfigErrors
from trinity.launch.run import RunOptions, plan_run
from trinity.launch.validation import check


def parquet(folder: Path, shift: int = 1) -> bytes:
    rows = [{"question": f"{a}+{a + shift}=", "answer": str(2 * a + shift)} for a in range(4)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "made.parquet")
    return (folder / "made.parquet").read_bytes()


def test_tasks_over_http_reach_a_training_step_and_the_job_continues_with_them_alone(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    (tmp_path / "train.jsonl").unlink()
    cache = {"TRINITY_CACHE_DIR": str(tmp_path / "cache")}
    with file_server({"/data/train.parquet": parquet(tmp_path)}) as server:
        server.word = "reader:open-sesame"
        address = f"{server.url}/data/train.parquet".replace("://", "://reader:open-sesame@")
        run.change(buffer__explorer_input__taskset__path=address, buffer__total_steps=1)
        ended = run.finish(environment=cache)
        assert ended.status == 0, ended.output[-3000:]
        assert len(run.lines("trainer")) == 1
        saved = yaml.safe_load((run.job / "config.yaml").read_text())
        written = saved["buffer"]["explorer_input"]["taskset"]["path"]
        assert written.startswith("http://reader:***@127.0.0.1") and written.endswith("/data/train.parquet")
        for file in (*run.job.rglob("*"), *(tmp_path / "cache").rglob("*")):
            assert not file.is_file() or b"open-sesame" not in file.read_bytes(), file
        assert "open-sesame" not in ended.output
        gets = len(server.ranges)
        ended = run.finish("--set", "buffer.total_steps=2", environment=cache)
        assert ended.status == 0 and len(server.ranges) == gets, "what has not changed is not fetched again"
        _changed(server, run, tmp_path, cache)


def _changed(server: FileServer, run: TinyRun, folder: Path, cache: dict[str, str]) -> None:
    server.files["/data/train.parquet"] = parquet(folder, shift=2)
    ended = run.finish("--set", "buffer.total_steps=3", environment=cache)
    assert ended.status == 7 and "E7046" in ended.output and "has changed since it was fetched last" in ended.output
    assert "buffer.explorer_input.taskset.path" in ended.output


def test_models_tasks_and_checkpoints_are_in_a_bucket(tmp_path: Path, bucket: str) -> None:
    run, system = TinyRun(tmp_path), store()
    system.put(str(tmp_path / "model"), f"{bucket}/models/tiny", recursive=True)
    system.pipe_file(f"{bucket}/models/tiny/pytorch_model.bin", b"pickle")
    system.pipe_file(f"{bucket}/tasks/train.jsonl", (tmp_path / "train.jsonl").read_bytes())
    (tmp_path / "train.jsonl").unlink()
    shutil.rmtree(tmp_path / "model")
    run.change(
        model__model_path=f"{bucket}/models/tiny",
        buffer__explorer_input__taskset__path=[f"{bucket}/tasks"],
        buffer__total_steps=2,
        trainer__checkpoint_upload_dir=f"{bucket}/checkpoints/",
        trainer__save_hf_checkpoint="always",
    )
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    ended = run.finish(environment={"TRINITY_CACHE_DIR": str(tmp_path / "cache"), **variables})
    assert ended.status == 0, ended.output[-3000:]
    there = f"{bucket}/checkpoints/tiny/run"
    assert system.cat_file(f"{there}/latest_checkpointed_iteration.txt") == b"2"
    for step in (1, 2):
        folder = run.job / f"global_step_{step}"
        for file in (path for path in folder.rglob("*") if path.is_file()):
            name = file.relative_to(run.job).as_posix()
            assert system.info(f"{there}/{name}")["size"] == file.stat().st_size, name
    assert not any(name.endswith("UNFINISHED.json") for name in system.find(there))
    saved = yaml.safe_load((run.job / "config.yaml").read_text())
    assert saved["model"]["model_path"] == saved["buffer"]["tokenizer_path"] == f"{bucket}/models/tiny"
    assert (
        run.lines("trainer")[-1]["perf/checkpoint/uploaded"]
        + run.lines("trainer")[-1]["perf/checkpoint/upload_pending"]
        == 1
    )
    assert not list((tmp_path / "cache").rglob("*.bin")) and "open-sesame" not in ended.output


def test_validate_asks_no_server_unless_told_to(
    tmp_path: Path,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRINITY_CACHE_DIR", str(tmp_path / "cache"))
    run, system, file = TinyRun(tmp_path), store(), tmp_path / "run.yaml"
    system.put(str(tmp_path / "model"), f"{bucket}/model", recursive=True)
    system.pipe_file(f"{bucket}/train.jsonl", b'{"question": "1+1="}\n')
    data = "buffer.explorer_input.taskset.path"
    run.change(model__model_path=f"{bucket}/model", buffer__explorer_input__taskset__path=f"{bucket}/train.jsonl")
    file.write_text(yaml.safe_dump(run.tree))
    monkeypatch.chdir(tmp_path)
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    unseen = {(each.code, each.key) for each in check(file)[1]}
    assert unseen == {("W3112", "model.model_path"), ("W3112", data)}
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    assert [(each.code, each.key) for each in check(file, fetches=True)[1]] == [("E4004", data)]
    assert [each.code for each in check(file)[1]] == ["E4004"], "what was fetched is looked at"
    monkeypatch.setattr("trinity.preflight.extras.is_installed", lambda package: package != "s3fs")
    upload = (f"trainer.checkpoint_upload_dir={bucket}",)
    found = [each for each in check(file, upload)[1] if each.code == "E3301"]
    assert {each.key for each in found} == {"model.model_path", data, "trainer.checkpoint_upload_dir"}
    assert all("trinity-rft[s3]" in (each.suggestion or "") for each in found)


def test_what_cannot_be_fetched_is_refused_together_before_a_folder_is_made(
    tmp_path: Path,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRINITY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    run = TinyRun(tmp_path)
    run.change(model__model_path=f"{bucket}/model", buffer__explorer_input__taskset__path=f"{bucket}/train.jsonl")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    with pytest.raises(ConfigErrors) as caught:
        plan_run(Path("run.yaml"), RunOptions())
    found = [(each.code, each.key, each.line is not None) for each in caught.value.problems]
    assert found == [("E3610", "model.model_path", True), ("E3610", "buffer.explorer_input.taskset.path", True)]
    assert int(caught.value.exit_code) == 3 and not run.job.exists()


def test_a_fetch_that_was_killed_goes_on_at_its_byte(tmp_path: Path) -> None:
    run = TinyRun(tmp_path)
    content = b"".join(b'{"question": "%d+1=", "answer": "%d"}\n' % (n, n + 1) for n in range(20_000))
    with file_server({"/train.jsonl": content}) as server:
        run.change(buffer__explorer_input__taskset__path=f"{server.url}/train.jsonl")
        how = {"words": ("validate", "--config", "run.yaml", "--fetch"), "environment": {"TRINITY_CACHE_DIR": "cache"}}
        killed = run.finish(failpoints="remote.after_piece=kill@3", **how)
        (part,) = (tmp_path / "cache").rglob("*.part")
        size = part.stat().st_size
        assert killed.status == -signal.SIGKILL and 0 < size < len(content)
        assert run.finish(**how).status == 0
        assert server.ranges == ["", f"bytes={size}-"]
    (copy,) = (tmp_path / "cache").rglob("train.jsonl")
    assert copy.read_bytes() == content
