"""Table of contents of the priority functions.

`python -m tools.contents` writes it from the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trinity.utils.entry import Contents, Entry
from trinity.utils.registry import Registry

CONTENTS = Contents.read(Path(__file__).with_name("contents.json"))
PRIORITY_CONTENTS: Mapping[str, Entry] = CONTENTS.names["priority_fn"]

PRIORITY_FUNC = Registry("priority function", PRIORITY_CONTENTS, kind="priority_fn")
