"""Makes what the examples train by default: generated tasks, and tiny models that have imitated demonstrations of them.

    python examples/prepare.py                # sums: for most of the examples
    python examples/prepare.py tools lake     # others, by the names in examples/README.md

It writes `tiny/NAME` below the current folder: `model`, from which the example starts, `tasks` with `train` and `test`,
and what else the examples read. What is complete is left as it is; remove the folder to make it again.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "examples")]  # of what `_tiny` imports
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from _tiny.imitation import Lesson, imitate  # noqa: E402

NAMES = ("sums", "teacher", "tools", "turns", "lake", "mails", "shapes", "judge")  # modules of `_tiny`


def written(name: str, folder: Path) -> Lesson | None:
    """Write a task's files; return what its model has to imitate, if there is something."""
    module = importlib.import_module(f"_tiny.{name}")
    lesson: Lesson | None = module.prepare(folder)
    return lesson


def prepare(name: str, root: Path) -> bool:
    """Make a task's folder below `root`; return False if it was complete."""
    folder = root / name
    if (folder / "model" / "config.json").exists():
        return False
    unfinished = root / f"{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    lesson = written(name, unfinished)
    if lesson is not None:
        imitate(unfinished, lesson)
    shutil.rmtree(unfinished / "work", ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.replace(folder)
    return True


def main() -> None:
    """Make what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; default: sums")
    parser.add_argument("--dir", type=Path, default=Path("tiny"), help="where the folders are made (tiny)")
    arguments = parser.parse_args()
    names = arguments.names or ["sums"]
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(NAMES)}")
    for name in names:
        begin = time.monotonic()
        is_new = prepare(name, arguments.dir.absolute())
        print(f"{arguments.dir / name}: {f'made in {time.monotonic() - begin:.0f} s' if is_new else 'is there'}")


if __name__ == "__main__":
    main()
