"""Table of the monitors, generated from the classes.

`python -m tools.contents` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trinity.utils.entry import Contents, Entry
from trinity.utils.registry import Registry

CONTENTS = Contents.read(Path(__file__).with_name("contents.json"))
MONITOR_CONTENTS: Mapping[str, Entry] = CONTENTS.names["monitor"]

MONITOR = Registry("monitor", MONITOR_CONTENTS)
