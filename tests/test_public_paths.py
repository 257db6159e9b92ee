"""The import paths that plugins and scripts rely on."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tools.reference.public_paths import PUBLIC
from trinity.common.checkpoint import CheckpointStore
from trinity.common.config import Config
from trinity.common.errors import CheckpointError

SAME = [
    ("trinity.common.schema.sql_schema", "trinity.buffer.schema.sql_schema", "ExperienceModel"),
    ("trinity.common.workflows", "trinity.common.workflows.workflow", "Workflow"),
    ("trinity.common.models", "trinity.engine.create", "create_inference_model"),
    ("trinity.cli.launcher", "trinity.cli", "main"),
    ("trinity.utils.monitor", "trinity.monitor.registry", "MONITOR"),
]


@pytest.mark.parametrize("module", PUBLIC)
def test_published_names_are_there(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(loaded, name)] == []


@pytest.mark.parametrize(("one", "other", "name"), SAME)
def test_two_paths_name_one_object(one: str, other: str, name: str) -> None:
    assert vars(importlib.import_module(other)).get(name) is getattr(importlib.import_module(one), name)


def write_checkpoint(job: Path, step: int, *, has_weights: bool) -> None:
    def fill(folder: Path) -> None:
        target = folder / "actor" / "huggingface"
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")
        if has_weights:
            (target / "model.safetensors").write_bytes(b"weights")

    CheckpointStore(job).write(step, fill, meta={}, keep=0)


def test_the_latest_hugging_face_checkpoint_is_the_newest_one_with_weights(tmp_path: Path) -> None:
    from trinity.trainer import get_latest_hf_checkpoint_path

    config = Config(checkpoint_job_dir=str(tmp_path))
    write_checkpoint(tmp_path, 1, has_weights=False)
    with pytest.raises(CheckpointError, match="save_hf_checkpoint must be last or always"):
        get_latest_hf_checkpoint_path(config)
    for step, has_weights in ((2, True), (10, True), (12, False)):
        write_checkpoint(tmp_path, step, has_weights=has_weights)
    newest = tmp_path / "global_step_10" / "actor" / "huggingface"
    assert get_latest_hf_checkpoint_path(config) == str(newest)
    (newest / "model.safetensors").write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        get_latest_hf_checkpoint_path(config)
