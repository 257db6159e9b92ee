"""The table of contents of the reward models.

`python -m tools.contents` writes it from the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trinity.utils.entry import Contents, Entry
from trinity.utils.registry import Registry

CONTENTS = Contents.read(Path(__file__).with_name("contents.json"))
REWARD_MODEL_CONTENTS: Mapping[str, Entry] = CONTENTS.names["reward_model"]

REWARD_MODELS = Registry("reward model", REWARD_MODEL_CONTENTS, kind="reward_model")
