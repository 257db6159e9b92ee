"""Table of contents of the reward functions.

`python -m tools.contents` writes it from the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trinity.utils.entry import Contents, Entry
from trinity.utils.registry import Registry

CONTENTS = Contents.read(Path(__file__).with_name("contents.json"))
REWARD_CONTENTS: Mapping[str, Entry] = CONTENTS.names["reward_fn"]

REWARD_FUNCTIONS = Registry("reward function", REWARD_CONTENTS, kind="reward_fn")
