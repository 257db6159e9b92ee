"""Writes `trinity/algorithm/contents.json` from the classes: `python -m tools.contents`; `--check` only compares."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import trinity.algorithm
from trinity.utils.declaration import Declared, entry_of
from trinity.utils.entry import Contents

FILE = Path(trinity.algorithm.__file__).with_name("contents.json")
# In the order of `trinity algorithms`: the types of this module come first.
FIRST = "trinity.algorithm.algorithm"
REGISTRIES = {
    "algorithm_type": trinity.algorithm.ALGORITHM_TYPE,
    "advantage_fn": trinity.algorithm.ADVANTAGE_FN,
    "policy_loss_fn": trinity.algorithm.POLICY_LOSS_FN,
    "kl_fn": trinity.algorithm.KL_FN,
    "entropy_loss_fn": trinity.algorithm.ENTROPY_LOSS_FN,
    "sample_strategy": trinity.algorithm.SAMPLE_STRATEGY,
}


def contents() -> Contents:
    """Return the tables of contents of the classes in `trinity.algorithm`.

    Raises:
        ValueError: two classes have the same name.
    """
    for module in pkgutil.walk_packages(trinity.algorithm.__path__, "trinity.algorithm."):
        importlib.import_module(module.name)
    ours: dict[str, type[Declared]] = {}
    for cls in _subclasses(Declared):
        if cls.__module__.startswith("trinity.algorithm.") and ours.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(
                f"two classes are called {cls.__name__}: {cls.__module__}, {ours[cls.__name__].__module__}"
            )
    names = {}
    for kind, registry in REGISTRIES.items():
        found = [name for name, cls in registry.classes.items() if cls.__module__.startswith("trinity.algorithm.")]
        ordered = (
            sorted(found)
            if kind != "algorithm_type"
            else sorted(
                found, key=lambda name: (registry.classes[name].__module__ != FIRST, registry.classes[name].__module__)
            )
        )
        names[kind] = {name: registry.contents[name] for name in ordered}
    return Contents(names, {name: entry_of(ours[name], kind=ours[name].kind) for name in sorted(ours)})


def _subclasses(cls: type[Declared]) -> Iterator[type[Declared]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def main() -> int:
    """Write the file, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; the status is 1 where the file is old")
    text = contents().to_json()
    if parser.parse_args().check:
        return int(FILE.read_text(encoding="utf-8") != text)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
