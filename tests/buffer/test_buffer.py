"""Readers and writers by configuration, and the store of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.buffer.store.oracle import experience, uids
from trinity.buffer import get_buffer_reader, get_buffer_writer
from trinity.buffer.buffer import open_store
from trinity.buffer.store import GIB
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.config import Config
from trinity.common.errors import ConfigError


def buffer(**values: object) -> ExperienceBufferConfig:
    return ExperienceBufferConfig.model_validate({"name": "exp", **values})


def run_config(job: Path, **values: object) -> Config:
    section = {"trainer_input": {"experience_buffer": {"name": "exp", **values}}}
    config = Config.model_validate({"buffer": section})
    return config.model_copy(update={"checkpoint_job_dir": str(job)})


def append(store, task: int) -> None:
    store.append("exp", [experience(1, task)], run="r", producer="p", explore_step=1 + task)


@pytest.mark.parametrize("storage_type", ["queue", "sql"])
def test_what_is_written_is_read_in_order_and_then_it_ends(tmp_path: Path, storage_type: str) -> None:
    config = buffer(storage_type=storage_type, path=f"sqlite:///{tmp_path}/e.db", max_read_timeout=5.0)
    writer = get_buffer_writer(config)
    writer.write([experience(1, 1), experience(1, 0)])
    writer.write([experience(2, 0)])
    writer.close()
    reader = get_buffer_reader(config)
    assert uids(reader.read(2)) == ["1/0/0/0/", "1/1/0/0/"]
    assert uids(reader.read(2)) == ["2/0/0/0/"]
    assert reader.read(2) == []


def test_a_file_buffer_writes_json_lines(tmp_path: Path) -> None:
    get_buffer_writer(buffer(storage_type="file", path=str(tmp_path / "a.jsonl"))).write([experience(1, 0)])
    get_buffer_writer(buffer(storage_type="file", path=str(tmp_path / "folder"))).write([experience(1, 0)])
    for file in (tmp_path / "a.jsonl", tmp_path / "folder" / "exp.jsonl"):
        assert json.loads(file.read_text())["response_text"] == "r0"


@pytest.mark.parametrize("storage_type", ["queue", "file"])
def test_a_buffer_without_a_path_is_an_error(storage_type: str) -> None:
    with pytest.raises(ConfigError, match="E1610.*path"):
        get_buffer_writer(buffer(storage_type=storage_type))


@pytest.mark.parametrize("values", [{}, {"storage_type": "file", "path": "/data/set.jsonl"}])
def test_without_a_path_the_run_has_its_own_store(tmp_path: Path, values: dict) -> None:
    with open_store(run_config(tmp_path, **values)) as store:
        append(store, 0)
        assert store.backup is None and store.keeping.limit == GIB
    assert (tmp_path / "buffer" / "experience.db").exists()


def test_a_json_path_is_a_copy_beside_the_runs_own_store(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy.json"
    with open_store(run_config(tmp_path / "job", storage_type="queue", path=str(copy))) as store:
        append(store, 0)
        append(store, 1)
    assert (tmp_path / "job" / "buffer" / "experience.db").exists()
    assert [json.loads(line)["uid"] for line in copy.read_text().splitlines()] == ["1/0/0/0/", "1/1/0/0/"]


def test_a_resolved_backup_is_written_beside_the_runs_own_store(tmp_path: Path) -> None:
    own = f"sqlite:///{tmp_path}/buffer/experience.db"
    with open_store(run_config(tmp_path, path=own, backup_path=str(tmp_path / "copy.jsonl"))) as store:
        append(store, 0)
        assert store.keeping.limit == GIB
    assert json.loads((tmp_path / "copy.jsonl").read_text())["uid"] == "1/0/0/0/"
    with open_store(run_config(tmp_path, path=own, storage_type="sql")) as store:
        assert store.keeping.limit is None


def test_a_database_of_the_users_is_the_store_and_keeps_its_payloads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mine.db"
    with open_store(run_config(tmp_path / "job", path=url)) as store:
        assert store.keeping.limit is None and store.url == url
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(("kept", "limit"), [(0, 0), (0.5, GIB // 2), (None, None)])
@pytest.mark.parametrize("values", [{}, {"storage_type": "sql"}, {"path": "sqlite:///{}/mine.db"}])
def test_what_is_written_decides_how_much_is_kept(
    tmp_path: Path, values: dict, kept: float | None, limit: int | None
) -> None:
    config = run_config(tmp_path, **{key: value.format(tmp_path) for key, value in values.items()})
    buffer = config.buffer.model_copy(update={"keep_payloads": kept})
    with open_store(config.model_copy(update={"buffer": buffer})) as store:
        assert store.keeping.limit == (GIB if kept is None and not values else limit)


@pytest.mark.difference("Replay without `reuse_cooldown_time`")
@pytest.mark.parametrize(("pause", "again"), [(None, []), (0, ["1/0/0/0/"])])
def test_without_a_pause_nothing_is_used_again(tmp_path: Path, pause: float | None, again: list[str]) -> None:
    replay = {"enable": True, "reuse_cooldown_time": pause}
    config = run_config(tmp_path, replay_buffer=replay)
    bounded = config.trainer.model_copy(update={"total_steps": 2})
    with open_store(config.model_copy(update={"trainer": bounded})) as store:
        store.open_producer("exp", "p", run="r")
        append(store, 0)
        store.close_producer("exp", "p", run="r")
        token = store.open_consumer("exp", "c", run="r", cut=0)
        first = store.read_batch(token, 1, timeout_s=1)
        store.commit_step(token, 1, uids(first.experiences))
        assert uids(first.experiences) == ["1/0/0/0/"]
        assert uids(store.read_batch(token, 1, timeout_s=1).experiences) == again
