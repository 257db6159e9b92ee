"""The folders of `examples/`: what their READMEs tell to run, by default and at full size."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from types import ModuleType

from tests.docs.pages import Page

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/README.md"))
BY_SCRIPT = {"async_gsm8k", "serve_sums"}
"""Folders with several parts, which their script runs."""
SINGLE = [folder for folder in FOLDERS if folder.name not in BY_SCRIPT]
RUN = "trinity run --config "


def commands(folder: Path) -> list[str]:
    """Return the lines that a README tells to run first."""
    return _blocks(folder)[0].splitlines()


def configuration(folder: Path) -> Path:
    """Return the configuration that a README runs."""
    (line,) = [line for line in commands(folder) if line.startswith(RUN)]
    return ROOT / line.removeprefix(RUN).split()[0]


def prepared_names(folder: Path) -> list[str]:
    """Return what `examples/prepare.py` makes for an example."""
    (line,) = [line for line in commands(folder) if line.startswith("python examples/prepare.py")]
    return line.split("#")[0].split()[2:] or ["sums"]


def full_size(folder: Path) -> dict[str, str]:
    """Return the environment variables of an example at full size."""
    lines = _blocks(folder)[1].splitlines()
    words = [word for line in lines if line.startswith("export ") for word in shlex.split(line)[1:]]
    return dict(word.split("=", 1) for word in words)


def full_size_configurations(folder: Path) -> list[Path]:
    """Return the configurations that a README runs at full size."""
    lines = _blocks(folder)[1].splitlines()
    return [ROOT / line.removeprefix(RUN).split()[0] for line in lines if line.startswith(RUN)]


def preparation() -> ModuleType:
    """Return the module `examples/prepare.py`."""
    return loaded("prepare")


def loaded(name: str) -> ModuleType:
    """Return a module of the folder `examples`."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


def _blocks(folder: Path) -> list[str]:
    return Page(folder / "README.md").code("bash")
