"""Writing the quickstart folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trinity.common.errors import ConfigError
from trinity.explain.editor_schema import SCHEMA_LINE, write_schema
from trinity.quickstart.dataset import write_dataset
from trinity.quickstart.model import write_model
from trinity.quickstart.template import render

YAML_NAME = "quickstart.yaml"
DATA_FILES = ("train.jsonl", "test.jsonl", "sft.jsonl")


@dataclass(frozen=True)
class Quickstart:
    """The quickstart folder that `prepare` returns.

    Attributes:
        directory: the folder.
        config: its YAML file.
        is_new: False if the YAML file was there before and was left as it is.
    """

    directory: Path
    config: Path
    is_new: bool


def prepare(directory: Path, *, seed: int = 42) -> Quickstart:
    """Write the quickstart folder; leave existing files unchanged.

    Args:
        directory: created if missing.
        seed: of the weights, the data and the run.

    Raises:
        ConfigError: the folder was made with another seed, or `directory` is something else.
    """
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--dir must be a folder, got the file {directory}; choose another --dir", code="E1090")
    config = directory / YAML_NAME
    is_new = not config.exists()
    if not is_new:
        _check_seed(config, seed)
    directory.mkdir(parents=True, exist_ok=True)
    if not all((directory / "data" / name).exists() for name in DATA_FILES):
        write_dataset(directory / "data", seed=seed)
    if not (directory / "model" / "config.json").exists():
        write_model(directory / "model", seed=seed)
    if is_new:
        write_schema(directory)
        config.write_text(f"{SCHEMA_LINE}\n{render(directory, seed=seed)}", encoding="utf-8")
    return Quickstart(directory, config, is_new)


def _check_seed(config: Path, seed: int) -> None:
    found = re.search(r"^seed:\s*(\d+)", config.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if found and int(found.group(1)) != seed:
        raise ConfigError(
            f"{config} was written for --seed {found.group(1)}, got --seed {seed}; "
            "choose another --dir or remove the folder",
            code="E1091",
        )
