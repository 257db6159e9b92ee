"""Databases for the viewer, and its page."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from streamlit.testing.v1 import AppTest

from tests.manager.viewer_page import Shown, Write, checked, fill, rows
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.manager.viewer import page
from trinity.manager.viewer.settings import ViewerSettings


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a database of experiences; a field named here is changed in the row of that id."""

    def written(count: int = 8, *, buffer: str = "mine", changes: dict[int, dict[str, Any]] | None = None) -> Path:
        file = tmp_path / "some experiences?.db"
        engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(file))
        fill(engine, rows(count), buffer=buffer)
        with Session(engine) as session:
            for number, fields in (changes or {}).items():
                for name, value in fields.items():
                    setattr(session.get(ExperienceModel, number), name, value)
            session.commit()
        engine.dispose()
        return file

    return written


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    """Runs the page as its server would."""

    def run(settings: ViewerSettings, **query: str | list[str]) -> AppTest:
        for name, value in settings.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("LC_ALL", "C.UTF-8")
        test = AppTest.from_file(str(Path(page.__file__)), default_timeout=60)
        for part, values in query.items():
            test.query_params[part] = values
        return checked(test.run())

    yield run
    page._records.clear()
