"""`import trinity` costs nothing, and what it offers is known to type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import trinity

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "datasets", "ray", "vllm", "sqlalchemy", "pydantic", "numpy")
CHECKING = """
import sys, trinity
assert not [name for name in %r if name in sys.modules], "import trinity"
trinity.run, trinity.run_async, trinity.evaluate, trinity.TrinityError, trinity.RunReport, trinity.StepEvent
report = trinity.validate({"mode": "bench"}, schema_only=True)
trinity.load_config({"mode": "bench"})
assert not [name for name in ("torch", "transformers", "datasets", "ray", "vllm") if name in sys.modules], "validate"
"""


def _stub() -> dict[str, str]:
    tree = ast.parse((ROOT / "trinity/__init__.pyi").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or "": str(node.module) for node in found for alias in node.names}


def test_the_names_and_their_places_are_those_of_the_stub() -> None:
    assert vars(trinity)["_PLACES"] == _stub()
    assert set(trinity.__all__) == set(_stub()) and set(_stub()) < set(dir(trinity))


@pytest.mark.parametrize("name", trinity.__all__)
def test_every_name_is_there_and_its_home_is_its_place(name: str) -> None:
    assert getattr(trinity, name) is getattr(sys.modules[_stub()[name]], name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        trinity.runn  # noqa: B018


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", CHECKING % (HEAVY,)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = settings["tool"]["setuptools"]["package-data"]["trinity"]
    assert set(shipped) == {"py.typed", "__init__.pyi"} and all((ROOT / "trinity" / name).is_file() for name in shipped)
