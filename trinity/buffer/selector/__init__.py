"""Selectors: the order in which rows of a dataset are taken.

A plugin adds its own with `@SELECTORS.register_module("name")` on a subclass of `BaseSelector`.
"""

from __future__ import annotations

from trinity.buffer.selector.selector import BaseSelector
from trinity.utils.registry import Entry, Registry

_PLACE = "trinity.buffer.selector.selector"

SELECTOR_CONTENTS: dict[str, Entry] = {
    "sequential": Entry(f"{_PLACE}:SequentialSelector", doc="In the order of the dataset, again every epoch."),
    "shuffle": Entry(f"{_PLACE}:ShuffleSelector", doc="A new permutation every epoch, from seed and epoch."),
    "random": Entry(f"{_PLACE}:RandomSelector", doc="Each draw from the whole dataset, from seed and position."),
}

SELECTORS = Registry("selector", SELECTOR_CONTENTS)

__all__ = ["SELECTORS", "SELECTOR_CONTENTS", "BaseSelector"]
