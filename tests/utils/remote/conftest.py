"""A cache of the test's own, and stores that answer: HTTP, memory, S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.file_server import FileServer, file_server
from tests.stores import bucket, memory, s3_server  # noqa: F401
from trinity.common.constants import CACHE_DIR_ENV_VAR


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_DIR_ENV_VAR, str(tmp_path / "cache"))
    return tmp_path / "cache" / "remote"


@pytest.fixture
def web() -> Iterator[FileServer]:
    with file_server({}) as server:
        yield server
