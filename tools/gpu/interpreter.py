"""Which Python `make gpu` runs with: one that has PyTorch for CUDA already, whose PyTorch is never replaced.

Usage: PYTHON tools/gpu/interpreter.py VENV

Prints its path. Of PYTHON, VENV and VENV-gpu it is the one that has most of what is needed. What that lacks is
installed into VENV-gpu, which sees the packages of the other; without a network, things continue with what is there.
Exit status 3: none of them has torch and transformers. It needs nothing but Python.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036  the user's python3 may be any
    sys.exit(f"Trinity needs Python 3.11 or newer, this is {sys.version.split()[0]}: make gpu PYTHON=python3.12")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.gpu.facts import packages

NOTHING_STATUS = 3
PIP_S = 600.0
MAIN = ("torch", "transformers")


def state() -> dict[str, Any]:
    """Return what this Python has, without importing any of it."""
    found = {name: find_spec(name) is not None for name in MAIN}
    return {"main": all(found.values()), "cuda": found["torch"] and _is_cuda_build(), **packages()}


def _is_cuda_build() -> bool:
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder) / "version.py"
        if file.is_file():
            return re.search(r"^cuda\b[^=]*=\s*['\"]", file.read_text(encoding="utf-8"), re.MULTILINE) is not None
    return False


def state_of(python: str) -> dict[str, Any] | None:
    """Return what another Python has, None if it does not start."""
    try:
        told = subprocess.run([python, __file__, "--state"], capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, Any] = json.loads(told.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found


def chosen(venv: Path) -> str | None:
    """Return the Python to use; None if no candidate has torch and transformers."""
    extended = venv.with_name(f"{venv.name}-gpu")
    paths = [sys.executable, *(str(folder / "bin" / "python") for folder in (venv, extended))]
    states = {path: found for path in paths if (found := state_of(path)) is not None and found["main"]}
    if not states:
        return None

    def value(path: str) -> tuple[bool, int]:
        return states[path]["cuda"], -len(states[path]["missing_required"])

    best = max(states, key=value)
    missing, versions = states[best]["missing_required"], states[best]["required"]
    # Named by their versions, so that pip gives up rather than replaces them.
    held = [f"{name}=={versions[name]}" for name in MAIN if versions[name]]
    return _extended(best, extended, missing, held) if missing and len(held) == len(MAIN) else best


def _extended(python: str, folder: Path, missing: list[str], held: list[str]) -> str:
    """Return a Python that has what `python` lacks; without a network, `python` itself."""
    print(f"{python} lacks {', '.join(missing)}; they are installed into {folder}", file=sys.stderr)
    made = str(folder / "bin" / "python")
    install = ["-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "10", *held, *missing]
    for command in ([python, "-m", "venv", "--system-site-packages", str(folder)], [made, *install]):
        try:
            done = subprocess.run(command, stdout=sys.stderr, timeout=PIP_S, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            done = False
        if not done:
            print(f"that failed; {python} is used as it is, and what needs them will fail", file=sys.stderr)
            return python
    return made


def main() -> int:
    """Print the path; return the exit status."""
    if sys.argv[1:] == ["--state"]:
        print(json.dumps(state()))
        return 0
    found = chosen(Path(sys.argv[1]).absolute())
    if found is None:
        print("no Python here has torch and transformers", file=sys.stderr)
        return NOTHING_STATUS
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
