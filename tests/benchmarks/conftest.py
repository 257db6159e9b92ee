"""The scripts of `benchmarks`, as modules of this process: one of its own costs seconds for its imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a script as it imports its parts: from its own folder."""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path[:] = before
    for name in [name for name in set(sys.modules) - known if (FOLDER / f"{name}.py").exists()]:
        del sys.modules[name]


@pytest.fixture
def refused(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that calls a script with arguments that it does not take, and returns what it said."""

    def of(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        with pytest.raises(SystemExit) as end:
            script(name).main()
        assert end.value.code == 2
        return capsys.readouterr().err

    return of
