"""Selectors: the order in which rows of a dataset are taken.

A plugin adds its own with `@SELECTORS.register_module("name")` on a subclass of `BaseSelector`.
"""

from __future__ import annotations

from trinity.buffer.selector.registry import SELECTOR_CONTENTS, SELECTORS
from trinity.buffer.selector.selector import BaseSelector, make_selector

__all__ = ["SELECTORS", "SELECTOR_CONTENTS", "BaseSelector", "make_selector"]
