"""The studio's page as its server would run it, without a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from trinity.manager.studio import page
from trinity.manager.studio.settings import StudioSettings

TIMEOUT_S = 120
INPUTS = ("text_input", "number_input", "selectbox", "text_area", "radio", "checkbox", "multiselect", "button")


def opened(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AppTest:
    """Open the page in English with these settings."""
    for name, value in StudioSettings(**settings).environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    return checked(AppTest.from_file(str(Path(page.__file__)), default_timeout=TIMEOUT_S).run())


def checked(test: AppTest) -> AppTest:
    """Return a page that was shown without an exception."""
    assert not test.exception, [each.value for each in test.exception]
    return test


def expert(test: AppTest, part: str) -> AppTest:
    """Go to a part of the expert mode."""
    checked(test.radio(key="_form").set_value("expert").run())
    return checked(test.radio(key="_part").set_value(part).run())


def yaml_of(test: AppTest) -> str:
    """Return the YAML that the page shows."""
    return next((each.value for each in test.code if each.language == "yaml"), "")


def said(test: AppTest) -> str:
    """Return all messages of the page, without the marks of Markdown."""
    elements = [*test.error, *test.warning, *test.success, *test.info]
    return "\n".join(each.value for each in elements).replace("\\", "")


def labels(test: AppTest) -> list[str]:
    """Return the labels of everything that takes a choice."""
    return [each.label for kind in INPUTS for each in getattr(test, kind)]
