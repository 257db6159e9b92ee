"""Settings of the studio's process, in its environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TRINITY_STUDIO"


@dataclass(frozen=True)
class StudioSettings:
    """What the studio begins with.

    Attributes:
        file: the YAML file that is edited; empty: none yet.
        plugin_dirs: folders of plugins, which may register parameters.
        folder: whose runs are shown first.
    """

    file: str = ""
    plugin_dirs: tuple[str, ...] = ()
    folder: str = "."

    def environment(self) -> dict[str, str]:
        """Return the variable that hands these settings on."""
        return {VARIABLE: json.dumps(vars(self))}

    @classmethod
    def of_environment(cls) -> StudioSettings:
        """Return the settings that this process was given."""
        given = json.loads(os.environ.get(VARIABLE, "{}"))
        return cls(**(given | {"plugin_dirs": tuple(given.get("plugin_dirs", ()))}))

    @property
    def plugin_paths(self) -> tuple[Path, ...]:
        """The folders of plugins."""
        return tuple(map(Path, self.plugin_dirs))
