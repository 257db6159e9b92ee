"""Data files for the readers' tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trinity.common.config.buffer import ExperienceBufferConfig, FormatConfig, TasksetConfig

GOOD = [{"question": f"{i}+{i}=", "answer": str(2 * i), "note": i} for i in range(1, 7)]


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON lines; a text or bytes is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for row in rows:
            data = row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode()
            file.write(data + b"\n")
    return path


def _places(path: Path | str | list[Path] | None) -> str | list[str] | None:
    return [str(each) for each in path] if isinstance(path, list) else None if path is None else str(path)


def taskset(path: Path | str | list[Path] | None, **values: Any) -> TasksetConfig:
    """Return a taskset with the columns question and answer."""
    columns = values.pop("format", {"prompt_key": "question", "response_key": "answer"})
    defaults = {"name": "sums", "default_workflow_type": "simple_workflow", "default_reward_fn_type": "math_reward"}
    return TasksetConfig.model_validate({**defaults, **values, "path": _places(path), "format": columns})


def dataset(path: Path | str | list[Path], **values: Any) -> ExperienceBufferConfig:
    """Return a dataset for SFT with the columns question and answer."""
    columns = values.pop("format", {"prompt_key": "question", "response_key": "answer"})
    return ExperienceBufferConfig.model_validate(
        {"name": "sft", "storage_type": "file", **values, "path": _places(path), "format": columns}
    )


def columns(**values: Any) -> FormatConfig:
    """Return a format."""
    return FormatConfig.model_validate({"prompt_key": "question", "response_key": "answer"} | values)
