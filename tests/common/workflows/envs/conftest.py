from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

STAND_INS = Path(__file__).parent / "stand_ins"
NAMES = [path.name for path in STAND_INS.iterdir() if path.is_dir()]


def _taken_out() -> dict[str, ModuleType]:
    importlib.invalidate_caches()
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in NAMES}


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Environments of the tests' own that speak the packages' protocols, whether those are installed or not."""
    before = _taken_out()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(STAND_INS)
        yield
    _taken_out()
    sys.modules.update(before)
