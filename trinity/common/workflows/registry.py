"""Table of contents of the workflows.

`python -m tools.contents` writes it from the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trinity.utils.entry import Contents, Entry
from trinity.utils.registry import Registry

CONTENTS = Contents.read(Path(__file__).with_name("contents.json"))
WORKFLOW_CONTENTS: Mapping[str, Entry] = CONTENTS.names["workflow"]

WORKFLOWS = Registry("workflow", WORKFLOW_CONTENTS)
