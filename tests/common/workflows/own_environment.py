"""An environment with a package that this one cannot have beside its others."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def outcome_with(extra: str, files: Sequence[Path], folder: Path) -> str:
    """Return what pytest says of files in a new environment, in which all tests must pass.

    What the extra names comes first there, and the rest from this environment.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    python = str(folder / "bin" / "python")
    wanted = project["optional-dependencies"][extra]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True, timeout=1200)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "zz_of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    ended = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly", *map(str, files)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:]
    return ended.stdout
