"""Chinese texts beside the English ones that they translate.

A package with texts for users has a file `<name>_zh.json`: the Chinese of each English text, one line each. A test
holds that every text has its Chinese there, and that the file has no other.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.resources import files


@functools.cache
def chinese_texts(package: str, name: str = "help_zh.json") -> Mapping[str, str]:
    """Return the Chinese of each English text in a file; it is read once."""
    found: dict[str, str] = json.loads(files(package).joinpath(name).read_text(encoding="utf-8"))
    return found
