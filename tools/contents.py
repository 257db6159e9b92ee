"""Writes each `contents.json` from the classes of its package: `python -m tools.contents`; `--check` only compares."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import trinity.algorithm as algorithm
from trinity.buffer.operators import EXPERIENCE_OPERATORS
from trinity.buffer.priority import PRIORITY_FUNC
from trinity.buffer.selector import SELECTORS
from trinity.common.models.reward_models import REWARD_MODELS
from trinity.common.rewards import REWARD_FUNCTIONS
from trinity.common.workflows import WORKFLOWS
from trinity.monitor import MONITOR
from trinity.utils.declaration import Declared, entry_of
from trinity.utils.entry import Contents
from trinity.utils.registry import Registry

# In the order of `trinity algorithms`: the types of this module come first.
FIRST = "trinity.algorithm.algorithm"
PACKAGES: dict[str, tuple[Registry, ...]] = {
    "trinity.algorithm": (
        algorithm.ALGORITHM_TYPE,
        algorithm.ADVANTAGE_FN,
        algorithm.POLICY_LOSS_FN,
        algorithm.KL_FN,
        algorithm.ENTROPY_LOSS_FN,
        algorithm.SAMPLE_STRATEGY,
    ),
    "trinity.buffer.operators": (EXPERIENCE_OPERATORS,),
    "trinity.buffer.priority": (PRIORITY_FUNC,),
    "trinity.buffer.selector": (SELECTORS,),
    "trinity.common.models.reward_models": (REWARD_MODELS,),
    "trinity.common.rewards": (REWARD_FUNCTIONS,),
    "trinity.common.workflows": (WORKFLOWS,),
    "trinity.monitor": (MONITOR,),
}


def file_of(package: str) -> Path:
    """Return the file of the tables of a package."""
    return Path(importlib.import_module(package).__path__[0]) / "contents.json"


def contents(package: str) -> Contents:
    """Return the tables of contents of the classes in a package.

    Raises:
        ValueError: two classes have the same name.
    """
    prefix = f"{package}."
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, prefix):
        importlib.import_module(module.name)
    ours: dict[str, type[Declared]] = {}
    for cls in _subclasses(Declared):
        if cls.__module__.startswith(prefix) and ours.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(
                f"two classes are called {cls.__name__}: {cls.__module__}, {ours[cls.__name__].__module__}"
            )
    names = {}
    for registry in PACKAGES[package]:
        found = {name: cls.__module__ for name, cls in registry.classes.items() if cls.__module__.startswith(prefix)}
        names[registry.kind] = {name: registry.contents[name] for name in _ordered(registry.kind, found)}
    return Contents(names, {name: entry_of(ours[name], kind=ours[name].kind) for name in sorted(ours)})


def _ordered(kind: str, modules: Mapping[str, str]) -> list[str]:
    if kind != "algorithm_type":
        return sorted(modules)
    return sorted(modules, key=lambda name: (modules[name] != FIRST, modules[name]))


def _subclasses(cls: type[Declared]) -> Iterator[type[Declared]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def main() -> int:
    """Write the files, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; the status is 1 where a file is old")
    texts = {file_of(package): contents(package).to_json() for package in PACKAGES}
    if parser.parse_args().check:
        return int(any(file.read_text(encoding="utf-8") != text for file, text in texts.items()))
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
