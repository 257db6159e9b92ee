"""What follows from a resolved configuration."""

from __future__ import annotations

import pytest

from trinity.common.config import Config
from trinity.common.config.resolved import database_file


@pytest.mark.parametrize(
    ("buffer", "file"),
    [
        ({"path": "sqlite:////a/b.db?timeout=3"}, "/a/b.db"),
        ({"path": "sqlite:///b.db"}, "b.db"),
        ({"path": "sqlite://"}, None),
        ({"path": "postgresql://host/b.db"}, None),
        ({"path": "sqlite:///b.db", "storage_type": "file"}, None),
        ({}, None),
    ],
)
def test_a_database_in_a_file_is_named(buffer: dict[str, str], file: str | None) -> None:
    values = {"buffer": {"trainer_input": {"experience_buffer": {"name": "b"} | buffer}}}
    assert database_file(Config.model_validate(values)) == file


def test_a_run_without_a_buffer_has_no_database() -> None:
    assert database_file(Config.model_validate({})) is None
